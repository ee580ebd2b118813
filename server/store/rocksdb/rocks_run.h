// One run of the RocksDB store: its blocks, and the journal of its samples.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_RUN_H_
#define SERVER_STORE_ROCKSDB_ROCKS_RUN_H_

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/wire/mutex.h"
#include "routing_replay/wire/geometry.h"
#include "server/store/memory/sample_journal.h"
#include "server/store/records/sample_record.h"
#include "server/store/rocksdb/rocks_options.h"
#include "server/store/rocksdb/rocks_space.h"
#include "server/store/sample/stored_block.h"
#include "server/store/store.h"
#include "server/store/store_time.h"

namespace routing_replay::server {

// Lets writes in until it is closed. A batch with a column family that is dropped makes the whole database refuse
// writes from then on, so that none may be on its way when one is. Thread-safe.
class WriteGate {
 public:
  // False once it is closed; otherwise Leave must follow.
  bool Enter();
  void Leave();
  // Returns when all that entered have left.
  void Close();
  bool closed() const;

 private:
  mutable Mutex mutex_;
  CondVar left_;
  int64_t inside_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// The handle of a column family, for as long as somebody uses it; the database is open as long.
struct RocksFamily {
  RocksFamily(std::shared_ptr<rocksdb::DB> db, rocksdb::ColumnFamilyHandle* handle)
      : db(std::move(db)), handle(handle) {}
  RocksFamily(const RocksFamily&) = delete;
  RocksFamily& operator=(const RocksFamily&) = delete;
  ~RocksFamily() { db->DestroyColumnFamilyHandle(handle).PermitUncheckedError(); }

  const std::shared_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* const handle;
  WriteGate writes;  // Closed before the family is dropped.
};

// Thread-safe. Once the family's gate is closed it writes and forgets nothing: NOT_FOUND (kNoRun).
class RocksRun final : public BlockHome, public SampleJournal, public SpaceUser {
 public:
  // forgets: whether blocks that nobody holds are taken away. Rows are written only where `space` has room.
  RocksRun(std::shared_ptr<RunUsage> usage, std::shared_ptr<RocksFamily> family, const RunInfo& info,
           std::shared_ptr<const StoreTime> time, std::shared_ptr<const std::atomic<bool>> forgets,
           std::shared_ptr<RocksSpace> space);

  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;

  absl::Status Write(const SampleChange& change) override;
  absl::Status NoteUse(Producer producer, absl::string_view sample) override;
  absl::Status Remove(Producer producer, absl::string_view sample) override;

  // Files all of whose blocks were taken away go; RocksDB rewrites others in its own time.
  absl::Status GiveBack(std::atomic<bool>& stop) override;

  // A block that is in the database. Before anything is written: new blocks get higher numbers than this one.
  std::shared_ptr<StoredBlock> Found(const BlockPlace& place);

 private:
  class DiskBlock;

  absl::Status Commit(rocksdb::WriteBatch batch);
  absl::Status CommitInside(rocksdb::WriteBatch batch);
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
