// Where RocksDB tells its troubles.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_LOG_H_
#define SERVER_STORE_ROCKSDB_ROCKS_LOG_H_

#include <rocksdb/env.h>

#include <memory>

namespace routing_replay::server {

// Warnings and errors go to the server's log. A file of RocksDB's own beside the database ends the process: once the
// disk is full, RocksDB's second line to it fails an assertion. Thread-safe.
std::shared_ptr<rocksdb::Logger> NewRocksLog();

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_LOG_H_
