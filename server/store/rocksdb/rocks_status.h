// What RocksDB answers, as the store says it. Pure; thread-safe.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_STATUS_H_
#define SERVER_STORE_ROCKSDB_ROCKS_STATUS_H_

#include <rocksdb/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace routing_replay::server {

// DATA_LOSS (kChecksum) for what is damaged or not there, RESOURCE_EXHAUSTED (kOverBudget) for a full disk, UNAVAILABLE
// for any other failure, each as "WHAT: …".
absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_STATUS_H_
