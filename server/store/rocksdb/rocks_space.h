// The room on a database's disk: rows are refused before it is full, so that what ends samples and runs can still be
// written, and so that what is in memory has a place to go to.
//
// RocksDB itself stops at a full disk: it then refuses every write, and cannot be opened again.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_SPACE_H_
#define SERVER_STORE_ROCKSDB_ROCKS_SPACE_H_

#include <rocksdb/write_buffer_manager.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"

namespace routing_replay::server {

// A run, as one that may hold what nobody wants any more.
class SpaceUser {
 public:
  virtual ~SpaceUser() = default;
  // Gives the disk what nobody wants any more, and ends early once `stop` is set. An error: something stays that may be
  // given back later.
  virtual absl::Status GiveBack(std::atomic<bool>& stop) = 0;
};

// One per database. Thread-safe; whoever uses a run shares it.
class RocksSpace {
 public:
  // Keeps an eighth of the disk of `path` free, 64 MiB at most, beside what `buffers` holds.
  RocksSpace(std::string path, std::shared_ptr<const rocksdb::WriteBufferManager> buffers);
  // Stop must have returned, or no call of Join have been made.
  ~RocksSpace() = default;

  // Room for a write of `bytes`, to be held until the write has ended; this must outlive it. RESOURCE_EXHAUSTED
  // (kOverBudget) if there is none beside what others hold. If anything ended since the last time that this was so, it
  // is given back in the background: a later call may say otherwise.
  absl::StatusOr<ByteReservation> Promise(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Something was removed whose bytes are on the disk still. To be called when GiveBack can find it.
  void NoteEnd() { ended_ = true; }
  // Asks `user` from then on, as long as it lives.
  void Join(std::weak_ptr<SpaceUser> user) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody is asked once it returns.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run();
  std::vector<std::weak_ptr<SpaceUser>> Users() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string path_;
  const std::shared_ptr<const rocksdb::WriteBufferManager> buffers_;
  const int64_t kept_;
  ByteBudget promised_{std::numeric_limits<int64_t>::max()};
  std::atomic<bool> ended_{false};
  std::atomic<bool> stop_{false};

  Mutex mutex_;
  CondVar changed_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::weak_ptr<SpaceUser>> users_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_SPACE_H_
