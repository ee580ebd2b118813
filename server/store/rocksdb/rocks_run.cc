#include "server/store/rocksdb/rocks_run.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/human.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/row_pieces.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

constexpr int64_t kMostKept = int64_t{64} << 20;
constexpr int64_t kKeptPart = 8;
// An append takes its size on the disk twice: in the log at once, and in a file later.
constexpr int64_t kWrittenTwice = 2;

int64_t Kept(const std::string& path) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(path, error);
  return error ? 0 : std::min<int64_t>(kMostKept, static_cast<int64_t>(space.capacity / kKeptPart));
}

// How many removed blocks may wait for the write that deletes them.
constexpr size_t kForgotten = 256;
constexpr int64_t kAllocationOverhead = 64;

}  // namespace

RocksSpace::RocksSpace(std::string path, std::shared_ptr<const rocksdb::WriteBufferManager> buffers)
    : path_(std::move(path)), buffers_(std::move(buffers)), kept_(Kept(path_)) {}

absl::StatusOr<ByteReservation> RocksSpace::Promise(int64_t bytes) {
  absl::StatusOr<ByteReservation> promised = promised_.Reserve(kWrittenTwice * bytes);
  if (!promised.ok()) return promised;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(path_, error);
  if (error) return promised;  // RocksDB will report what is wrong with the disk.
  const int64_t unwritten = static_cast<int64_t>(buffers_->memory_usage());
  if (static_cast<int64_t>(space.available) >= kept_ + unwritten + promised_.used()) return promised;
  if (ended_.exchange(false)) {
    MutexLock lock(mutex_);
    wanted_ = true;
    changed_.NotifyAll();
  }
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the disk of ", path_, " is full: ", HumanBytes(static_cast<int64_t>(space.available)),
                                " are free, but ", HumanBytes(kept_ + unwritten),
                                " are reserved for data still to be written; release samples, drop runs or free space"),
                   {.reason = Reason::kOverBudget});
}

void RocksSpace::Join(std::weak_ptr<SpaceUser> user) {
  MutexLock lock(mutex_);
  std::erase_if(users_, [](const auto& each) { return each.expired(); });
  users_.push_back(std::move(user));
  if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { Run(); });
}

void RocksSpace::Stop() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

std::vector<std::weak_ptr<SpaceUser>> RocksSpace::Users() {
  MutexLock lock(mutex_);
  while (!wanted_ && !stop_) changed_.Wait(mutex_);
  wanted_ = false;
  return users_;
}

void RocksSpace::Run() {
  while (!stop_) {
    for (const std::weak_ptr<SpaceUser>& each : Users()) {
      const std::shared_ptr<SpaceUser> user = each.lock();
      if (user != nullptr && !stop_ && !user->GiveBack(stop_).ok()) NoteEnd();
    }
  }
}

class RocksRun::DiskBlock final : public StoredBlock {
 public:
  // A block that is to be written.
  DiskBlock(std::shared_ptr<BlockHome> run, uint64_t id, Block block, int64_t cost)
      : StoredBlock(std::move(run), block.rows, block.codec, cost),
        id_(id),
        unwritten_(std::make_unique<const Block>(std::move(block))) {}
  DiskBlock(std::shared_ptr<BlockHome> run, const BlockRef& ref, int64_t cost)
      : StoredBlock(std::move(run), ref.rows, ref.codec, cost), id_(ref.id) {}
  ~DiskBlock() override {
    if (!unwritten_) run().Forget(id_);
  }

  uint64_t id() const { return id_; }
  const Block& unwritten() const { return *unwritten_; }
  // The bytes are in the database now. Call before anybody else sees the block.
  void Written() { unwritten_.reset(); }

 private:
  RocksRun& run() const { return static_cast<RocksRun&>(home()); }

  absl::StatusOr<LoadedBlock> LoadBytes() const override {
    if (unwritten_) return LoadedBlock{nullptr, unwritten_->view()};
    const Geometry& geometry = *run().geometry_;
    auto value = std::make_shared<rocksdb::PinnableSlice>();
    const RocksFamily& family = *run().family_;
    const std::string what = absl::StrCat("block ", id_, " with rows ", ToString(rows()));
    rocksdb::Status got = family.db->Get(rocksdb::ReadOptions(), family.handle, rocks::BlockKey(id_), value.get());
    // A missing file of the database counts as damage.
    if (got.IsPathNotFound()) got = rocksdb::Status::Corruption(got.ToString());
    if (got.ok() && static_cast<int64_t>(value->size()) != ValueBytes(geometry, rows().size(), codec())) {
      got = rocksdb::Status::Corruption(absl::StrCat(value->size(), " bytes"));
    }
    RR_RETURN_IF_ERROR(FromRocks(got, what));
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(value->data()), value->size());
    return BlockOfValue(geometry, rows(), codec(), std::move(value), bytes);
  }

  const uint64_t id_;
  std::unique_ptr<const Block> unwritten_;
};

RocksRun::RocksRun(std::shared_ptr<RunUsage> usage, std::shared_ptr<RocksFamily> family, const RunInfo& info,
                   std::shared_ptr<const StoreTime> time, std::shared_ptr<const std::atomic<bool>> forgets,
                   std::shared_ptr<RocksSpace> space)
    : BlockHome(std::move(usage)),
      family_(std::move(family)),
      run_(info.run),
      geometry_(info.geometry),
      write_options_(RocksWriteOptions(*info.options.durability)),
      time_(std::move(time)),
      forgets_(std::move(forgets)),
      space_(std::move(space)) {}

int64_t RocksRun::Cost(const Geometry&, int64_t, Codec) const {
  return kAllocationOverhead + static_cast<int64_t>(sizeof(DiskBlock) + sizeof(RowPiece));
}

std::shared_ptr<StoredBlock> RocksRun::Keep(Block block, int64_t cost) {
  return std::make_shared<DiskBlock>(shared_from_this(), next_block_.fetch_add(1), std::move(block), cost);
}

std::shared_ptr<StoredBlock> RocksRun::Found(const BlockRef& ref) {
  next_block_ = std::max<uint64_t>(next_block_, ref.id + 1);
  return std::make_shared<DiskBlock>(shared_from_this(), ref, Cost(*geometry_, ref.rows.size(), ref.codec));
}

absl::Status RocksRun::Write(const SampleChange& change) {
  rocksdb::WriteBatch batch;
  for (const std::shared_ptr<StoredBlock>& block : change.added) PutBlock(static_cast<DiskBlock&>(*block), batch);
  const int64_t windows = WindowCount(change.lists.rows(), change.block_rows);
  const auto id_of = [](const StoredBlock& block) { return static_cast<const DiskBlock&>(block).id(); };
  for (int64_t window = change.first_window; window < windows; ++window) {
    const std::string key = rocks::WindowKey(change.producer, change.sample, window);
    const std::string record = EncodeWindow(change.lists, change.pieces, change.block_rows, window, id_of);
    if (!record.empty()) {
      batch.Put(family_->handle, key, record);
    } else if (window < change.windows_before) {
      batch.Delete(family_->handle, key);
    }
  }
  if (windows < change.windows_before) {
    batch.DeleteRange(family_->handle, rocks::WindowKey(change.producer, change.sample, windows),
                      rocks::WindowKey(change.producer, change.sample, change.windows_before));
  }
  batch.Put(family_->handle, rocks::HeadKey(change.producer, change.sample), EncodeHead(change.lists));
  batch.Put(family_->handle, rocks::UseKey(change.producer, change.sample), rocks::EncodeTime(time_->NowMs()));
  absl::StatusOr<ByteReservation> room;
  if (change.grows || !change.added.empty()) {
    room = space_->Promise(static_cast<int64_t>(batch.GetDataSize()));
    if (!room.ok()) return room.status();
  }
  RR_RETURN_IF_ERROR(Commit(std::move(batch)));
  for (const std::shared_ptr<StoredBlock>& block : change.added) static_cast<DiskBlock&>(*block).Written();
  return absl::OkStatus();
}

absl::Status RocksRun::NoteUse(Producer producer, absl::string_view sample) {
  rocksdb::WriteBatch batch;
  batch.Put(family_->handle, rocks::UseKey(producer, sample), rocks::EncodeTime(time_->NowMs()));
  return Commit(std::move(batch));
}

absl::Status RocksRun::Remove(Producer producer, absl::string_view sample) {
  rocksdb::WriteBatch batch;
  batch.Delete(family_->handle, rocks::HeadKey(producer, sample));
  batch.Delete(family_->handle, rocks::UseKey(producer, sample));
  batch.DeleteRange(family_->handle, rocks::WindowKey(producer, sample, 0), rocks::WindowKey(producer, sample, -1));
  return Commit(std::move(batch));
}

void RocksRun::PutBlock(const DiskBlock& block, rocksdb::WriteBatch& batch) const {
  const Block& bytes = block.unwritten();
  const std::string key = rocks::BlockKey(block.id());
  const rocksdb::Slice key_part(key);
  const auto slice = [](absl::Span<const uint8_t> part) {
    return rocksdb::Slice(reinterpret_cast<const char*>(part.data()), part.size());
  };
  const rocksdb::Slice parts[] = {slice(CrcBytes(bytes.plane_crc32c)), slice(bytes.bytes.span())};
  batch.Put(family_->handle, rocksdb::SliceParts(&key_part, 1), rocksdb::SliceParts(parts, 2));
  batch.Put(family_->handle, rocks::BlockIdKey(block.id()), rocksdb::Slice());
}

absl::Status RocksRun::Commit(rocksdb::WriteBatch batch) {
  const std::shared_lock writing(family_->writing);
  if (family_->closed) return NoRunError(run_);
  std::vector<uint64_t> gone;
  {
    MutexLock lock(mutex_);
    std::swap(gone, forgotten_);
  }
  for (const uint64_t block : gone) {
    batch.Delete(family_->handle, rocks::BlockKey(block));
    batch.Delete(family_->handle, rocks::BlockIdKey(block));
  }
  absl::Status status = FromRocks(family_->db->Write(write_options_, &batch), "the database cannot be written to");
  if (!status.ok()) {
    MutexLock lock(mutex_);
    forgotten_.insert(forgotten_.end(), gone.begin(), gone.end());
  }
  return status;
}

void RocksRun::Forget(uint64_t block) {
  if (!*forgets_ || family_->closed) return;
  bool many = false;
  {
    MutexLock lock(mutex_);
    forgotten_.push_back(block);
    many = forgotten_.size() >= kForgotten;
  }
  space_->NoteEnd();
  if (!many) return;
  Commit(rocksdb::WriteBatch())
      .IgnoreError();  // What remains is deleted by a later write, or when the database is opened again.
}

absl::Status RocksRun::GiveBack(std::atomic<bool>& stop) {
  const absl::Status taken_away = Commit(rocksdb::WriteBatch());
  if (family_->closed) return absl::OkStatus();  // Everything is removed with the column family.
  if (!taken_away.ok()) return taken_away;
  const absl::string_view what = "the space of removed rows cannot be freed";
  absl::Status flushed = FromRocks(family_->db->Flush(RocksFlushAtOnce(), family_->handle), what);
  if (!flushed.ok()) return flushed;
  rocksdb::CompactRangeOptions options;
  options.canceled = &stop;
  // Garbage collection would rewrite the rows that are still needed, and there is no room for them now.
  options.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kDisable;
  return FromRocks(family_->db->CompactRange(options, family_->handle, nullptr, nullptr), what);
}

}  // namespace routing_replay::server
