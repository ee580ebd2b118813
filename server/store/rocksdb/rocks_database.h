// The database of a store: RocksDB's options for blocks of routes, the layout of the keys, the disk space that all runs
// share, and one run: its blocks and the journal of its samples.
//
// Each run has its own column family, so that it can be dropped at once with all it holds:
//
//   default             'r' run                        → RunRecord
//                       "end"                          → how the last process ended
//   "run:" + run        'h' producer sample            → SampleHead
//                       'w' producer sample 0 window   → WindowRecord
//                       'b' block                      → CRCs of the planes, then the block's bytes; a blob
//                       'i' block                      → empty: lists the blocks without reading blobs
//
// producer: one byte. window, block: 8 bytes, big-endian. Sample ids contain no byte 0.
#ifndef SERVER_STORE_ROCKSDB_ROCKS_DATABASE_H_
#define SERVER_STORE_ROCKSDB_ROCKS_DATABASE_H_

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/status.h>
#include <rocksdb/write_batch.h>
#include <rocksdb/write_buffer_manager.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"
#include "server/admission/byte_budget.h"
#include "server/store/memory/memory_store.h"
#include "server/store/records/records.h"
#include "server/store/row_pieces.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Values of 4 KiB and more are stored as blobs, of which compactions rewrite only the oldest. `cache` holds, for all
// runs together, data that was read and, in up to half of it, data that is not yet in a table file. `env` is null for
// the real file system.
rocksdb::DBOptions RocksDatabaseOptions(const std::shared_ptr<rocksdb::Cache>& cache, rocksdb::Env* env);
rocksdb::ColumnFamilyOptions RocksRunOptions(std::shared_ptr<rocksdb::Cache> cache);
rocksdb::WriteOptions RocksWriteOptions(Durability durability);
// Options of a flush that starts at once, even if writes must wait for it, and that returns when it is done.
rocksdb::FlushOptions RocksFlushAtOnce();

// Converts a RocksDB status. DATA_LOSS (kChecksum) if something is damaged or missing, RESOURCE_EXHAUSTED (kOverBudget)
// for a full disk, UNAVAILABLE for any other failure. The message contains "WHAT: …".
absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what);

}  // namespace routing_replay::server

namespace routing_replay::server::rocks {

// Keys. Pure; thread-safe.
inline constexpr absl::string_view kRunPrefix = "r";
inline constexpr absl::string_view kHeadPrefix = "h";
inline constexpr absl::string_view kWindowPrefix = "w";
inline constexpr absl::string_view kBlockPrefix = "b";
inline constexpr absl::string_view kBlockIdPrefix = "i";
inline constexpr char kEndKey[] = "end";

std::string RunFamily(absl::string_view run);
std::string RunKey(absl::string_view run);
std::string HeadKey(Producer producer, absl::string_view sample);
// The windows of a sample follow one another, ascending.
std::string WindowKey(Producer producer, absl::string_view sample, int64_t window);
std::string BlockKey(uint64_t block);
std::string BlockIdKey(uint64_t block);

// Requires a key made by HeadKey.
Producer ProducerOf(absl::string_view head_key);
absl::string_view SampleOf(absl::string_view head_key);
// Requires a key made by RunKey.
absl::string_view RunOf(absl::string_view run_key);
// Requires a key made by BlockIdKey.
uint64_t BlockOf(absl::string_view block_id_key);

}  // namespace routing_replay::server::rocks

namespace routing_replay::server {

// Rejects rows before the disk is completely full, so that removals can still be written and data in memory can still
// be flushed. If the disk were really full, RocksDB would reject every write and could not be opened again. One per
// database. Thread-safe; all runs share it.
class RocksSpace {
 public:
  // Keeps an eighth of the disk of `path` free, 64 MiB at most, in addition to the data in `buffers`.
  RocksSpace(std::string path, std::shared_ptr<const rocksdb::WriteBufferManager> buffers);

  // Reserves room for a write of `bytes`. Hold the reservation until the write has ended; this object must outlive it.
  // RESOURCE_EXHAUSTED (kOverBudget) if too little of the disk is free.
  absl::StatusOr<ByteReservation> Promise(int64_t bytes);
  // How many writes Promise has rejected.
  int64_t rejections() const { return rejections_; }

 private:
  const std::string path_;
  const std::shared_ptr<const rocksdb::WriteBufferManager> buffers_;
  const int64_t kept_;
  ByteBudget promised_{std::numeric_limits<int64_t>::max()};
  std::atomic<int64_t> rejections_{0};
};

// A column family. While this object lives, `handle` is valid and the database stays open.
struct RocksFamily {
  RocksFamily(std::shared_ptr<rocksdb::DB> db, rocksdb::ColumnFamilyHandle* handle)
      : db(std::move(db)), handle(handle) {}
  RocksFamily(const RocksFamily&) = delete;
  RocksFamily& operator=(const RocksFamily&) = delete;
  ~RocksFamily() { db->DestroyColumnFamilyHandle(handle).PermitUncheckedError(); }

  // Call before dropping it: nobody writes to it once this returns.
  void CloseForWrites() {
    closed = true;
    std::unique_lock lock(writing);
  }

  const std::shared_ptr<rocksdb::DB> db;
  rocksdb::ColumnFamilyHandle* const handle;
  // A write to a dropped column family would make the whole database reject writes. So a writer first takes `writing`
  // as a shared lock, and then checks `closed`.
  std::shared_mutex writing;
  std::atomic<bool> closed{false};
};

// The blocks and the journal of one run. Thread-safe. NOT_FOUND (kNoRun) once the family is closed for writes.
class RocksRun final : public BlockHome, public SampleJournal {
 public:
  // While `forgets` is true, blocks that nobody holds are deleted. Rows are written only if `space` has room.
  RocksRun(std::shared_ptr<RunUsage> usage, std::shared_ptr<RocksFamily> family, const RunInfo& info,
           std::shared_ptr<const std::atomic<bool>> forgets, std::shared_ptr<RocksSpace> space);

  SampleJournal* journal() override { return this; }
  int64_t Cost(const Geometry& geometry, int64_t rows, Codec codec) const override;
  std::shared_ptr<StoredBlock> Keep(Block block, int64_t cost) override;

  absl::Status Write(const SampleChange& change) override;
  absl::Status Remove(Producer producer, absl::string_view sample) override;

  // Does nothing unless a write was rejected since the last call and the space of removed blocks is not free yet.
  // Removes files whose blocks are all deleted. A file with some needed blocks stays until RocksDB rewrites it.
  void FreeSpace() override;

  // A block that is already in the database. Call before anything is written: new blocks get higher numbers than this
  // one.
  std::shared_ptr<StoredBlock> Found(const BlockRef& ref);

 private:
  class DiskBlock;

  absl::Status GiveBack();
  absl::Status Commit(rocksdb::WriteBatch batch);
  void PutBlock(const DiskBlock& block, rocksdb::WriteBatch& batch) const;
  // Call it when nobody can reach the block any more. The next write deletes it, or the next start of the server.
  void Forget(uint64_t block);

  const std::shared_ptr<RocksFamily> family_;
  const std::string run_;
  const std::shared_ptr<const Geometry> geometry_;
  const rocksdb::WriteOptions write_options_;
  const std::shared_ptr<const std::atomic<bool>> forgets_;
  const std::shared_ptr<RocksSpace> space_;
  std::atomic<uint64_t> next_block_{1};
  std::atomic<int64_t> seen_rejections_{0};
  std::atomic<bool> ended_{false};  // Something was removed whose bytes are still on the disk.

  Mutex mutex_;
  std::vector<uint64_t> forgotten_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_ROCKSDB_ROCKS_DATABASE_H_
