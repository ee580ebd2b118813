// One run of the RocksDB store: its blocks, and the journal of its samples; and the room on the disk that all runs
// write to.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_RUN_H_
#define SERVER_STORE_ROCKSDB_ROCKS_RUN_H_

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>
#include <rocksdb/write_buffer_manager.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/geometry.h"
#include "server/admission/byte_budget.h"
#include "server/store/memory/memory_store.h"
#include "server/store/records/records.h"
#include "server/store/rocksdb/rocks_database.h"
#include "server/store/row_pieces.h"
#include "server/store/store.h"
#include "server/store/store_time.h"

namespace routing_replay::server {

// A run, as one that may hold what nobody wants any more.
class SpaceUser {
 public:
  virtual ~SpaceUser() = default;
  // Gives the disk what nobody wants any more, and ends early once `stop` is set. An error: something stays that may be
  // given back later.
  virtual absl::Status GiveBack(std::atomic<bool>& stop) = 0;
};

// Rows are rejected before the disk is full, so that what ends samples and runs can still be written, and so that what
// is in memory has a place to go to: RocksDB itself stops at a full disk, it then rejects every write, and cannot be
// opened again. One per database. Thread-safe; whoever uses a run shares it.
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

// The handle of a column family, for as long as somebody uses it; the database is open as long.
struct RocksFamily {
  RocksFamily(std::shared_ptr<rocksdb::DB> db, rocksdb::ColumnFamilyHandle* handle)
      : db(std::move(db)), handle(handle) {}
  RocksFamily(const RocksFamily&) = delete;
  RocksFamily& operator=(const RocksFamily&) = delete;
  ~RocksFamily() { db->DestroyColumnFamilyHandle(handle).PermitUncheckedError(); }

  // Before it is dropped: nobody writes to it once this returns.
  void CloseForWrites() {
    closed = true;
    std::unique_lock lock(writing);
  }

  const std::shared_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* const handle;
  // A batch with a column family that is dropped makes the whole database reject writes from then on. So who writes
  // holds `writing` shared, and looks at `closed` after it was taken.
  std::shared_mutex writing;
  std::atomic<bool> closed{false};
};

// Thread-safe. Once the family is closed it writes and forgets nothing: NOT_FOUND (kNoRun).
class RocksRun final : public BlockHome, public SampleJournal, public SpaceUser {
 public:
  // forgets: whether blocks that nobody holds are taken away. Rows are written only where `space` has room.
  RocksRun(std::shared_ptr<RunUsage> usage, std::shared_ptr<RocksFamily> family, const RunInfo& info,
           std::shared_ptr<const StoreTime> time, std::shared_ptr<const std::atomic<bool>> forgets,
           std::shared_ptr<RocksSpace> space);

  SampleJournal* journal() override { return this; }
  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;

  absl::Status Write(const SampleChange& change) override;
  absl::Status NoteUse(Producer producer, absl::string_view sample) override;
  absl::Status Remove(Producer producer, absl::string_view sample) override;

  // Files all of whose blocks were taken away go; RocksDB rewrites others in its own time.
  absl::Status GiveBack(std::atomic<bool>& stop) override;

  // A block that is in the database. Before anything is written: new blocks get higher numbers than this one.
  std::shared_ptr<StoredBlock> Found(const BlockRef& ref);

 private:
  class DiskBlock;

  absl::Status Commit(rocksdb::WriteBatch batch);
  void PutBlock(const DiskBlock& block, rocksdb::WriteBatch& batch) const;
  // Nobody can reach the block any more. It goes with a later write.
  void Forget(uint64_t block);

  const std::shared_ptr<RocksFamily> family_;
  const std::string run_;
  const std::shared_ptr<const Geometry> geometry_;
  const rocksdb::WriteOptions write_options_;
  const std::shared_ptr<const StoreTime> time_;
  const std::shared_ptr<const std::atomic<bool>> forgets_;
  const std::shared_ptr<RocksSpace> space_;
  std::atomic<uint64_t> next_block_{1};

  Mutex mutex_;
  std::vector<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_RUN_H_
