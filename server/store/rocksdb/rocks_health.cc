#include "server/store/rocksdb/rocks_health.h"

#include "server/store/rocksdb/rocks_status.h"

namespace routing_replay::server {
namespace {

constexpr char kWhat[] = "the database refuses writes";

}  // namespace

absl::Status RocksHealth::Get() const {
  MutexLock lock(mutex_);
  return status_;
}

void RocksHealth::OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* error) {
  MutexLock lock(mutex_);
  // Milder ones leave the database writable.
  if (error->severity() >= rocksdb::Status::kHardError) status_ = FromRocks(*error, kWhat);
}

void RocksHealth::OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo& info) {
  MutexLock lock(mutex_);
  status_ = FromRocks(info.new_bg_error, kWhat);
}

}  // namespace routing_replay::server
