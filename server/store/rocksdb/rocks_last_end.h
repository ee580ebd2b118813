// How the last process that had the database open ended, and what that means for what it had acknowledged.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_LAST_END_H_
#define SERVER_STORE_ROCKSDB_ROCKS_LAST_END_H_

#include <rocksdb/db.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "routing_replay/wire/durability.h"

namespace routing_replay::server {

enum class LastEnd {
  kClean,     // It closed the database.
  kSameBoot,  // It did not, and the machine has run on since.
  kUnknown,   // It did not, and the machine may have been started anew.
  kDamaged,   // It did not, and what it had logged cannot be read to its end.
};

// Whether runs of this durability may then lack what was acknowledged last: what is in memory goes with the process,
// what the operating system has been given goes with the machine, what is on the disk goes with the disk.
bool MayLack(LastEnd end, Durability durability);

// Differs from one start of the machine to the next; empty if it cannot be had.
std::string MachineBootId();

// `family`: where the mark lies. `log_damaged`: whether what was logged since the mark can be read to its end. Errors
// as FromRocks.
absl::StatusOr<LastEnd> ReadLastEnd(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& boot_id,
                                    bool log_damaged);
// Each in a file other than the log when it returns, so that damage to the log cannot bring back the mark before. The
// latter requires that all else is in such files, too: after it, nothing that is in the log is needed.
absl::Status MarkOpen(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& boot_id, int64_t now_ms);
absl::Status MarkClosed(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, int64_t now_ms);
// `now_ms` of the last mark; 0 if there is none that can be read.
int64_t LastMarkMs(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_LAST_END_H_
