// How RocksDB is set up for blocks of routes.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_OPTIONS_H_
#define SERVER_STORE_ROCKSDB_ROCKS_OPTIONS_H_

#include <rocksdb/options.h>

#include <cstdint>

#include "routing_replay/wire/durability.h"

namespace routing_replay {

// Values of 4 KiB and more are blobs: compaction does not move them.
rocksdb::DBOptions RocksDatabaseOptions();
// cache_bytes: for what is read, of all runs together.
rocksdb::ColumnFamilyOptions RocksRunOptions(std::shared_ptr<rocksdb::Cache> cache);
rocksdb::WriteOptions RocksWriteOptions(Durability durability);

}  // namespace routing_replay

#endif  // SERVER_STORE_ROCKSDB_ROCKS_OPTIONS_H_
