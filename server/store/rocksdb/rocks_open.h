// Opens the database of a store, as far as it can be read.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_OPEN_H_
#define SERVER_STORE_ROCKSDB_ROCKS_OPEN_H_

#include <rocksdb/options.h>

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/rocksdb/rocks_damaged_log.h"
#include "server/store/rocksdb/rocks_run.h"

namespace routing_replay::server {

struct OpenedDatabase {
  std::shared_ptr<rocksdb::DB> db;
  std::shared_ptr<RocksFamily> by_default;
  std::map<std::string, std::shared_ptr<RocksFamily>> families;  // The others, by name.
};

// Makes the database if there is none. What a process that was killed had not written to the end of the log is no
// damage. A log that cannot be read otherwise, or is not there, is noted in `log`, and the database is then what it was
// before the damage, or, where that is not to be had either, without what is damaged. UNAVAILABLE if it cannot be
// opened, DATA_LOSS if more than the log is damaged or missing: nothing is changed then, or noted that was not before.
absl::StatusOr<OpenedDatabase> OpenDatabase(const std::string& path, const rocksdb::Options& options,
                                            const DamagedLog& log);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_OPEN_H_
