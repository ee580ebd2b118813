// How RocksDB is set up for blocks of routes.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_OPTIONS_H_
#define SERVER_STORE_ROCKSDB_ROCKS_OPTIONS_H_

#include <rocksdb/options.h>

#include <cstdint>

#include "routing_replay/wire/durability.h"

namespace routing_replay::server {

// Values of 4 KiB and more are blobs: compaction does not move them.
// `cache` holds what is read and, up to half of it, what is not yet in a table file, of all runs together. `env`: null
// is the machine's.
rocksdb::DBOptions RocksDatabaseOptions(const std::shared_ptr<rocksdb::Cache>& cache, rocksdb::Env* env);
rocksdb::ColumnFamilyOptions RocksRunOptions(std::shared_ptr<rocksdb::Cache> cache);
rocksdb::WriteOptions RocksWriteOptions(Durability durability);
// Returns when it is done, whoever else writes.
rocksdb::FlushOptions RocksFlushAtOnce();

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_OPTIONS_H_
