// Whether a database takes writes, as it tells its listeners.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_HEALTH_H_
#define SERVER_STORE_ROCKSDB_ROCKS_HEALTH_H_

#include <rocksdb/listener.h>

#include "absl/status/status.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// One per database. Thread-safe.
class RocksHealth final : public rocksdb::EventListener {
 public:
  // OK, or as FromRocks while the database refuses all writes.
  absl::Status Get() const;

  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* error) override;
  void OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo& info) override;

 private:
  mutable Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_HEALTH_H_
