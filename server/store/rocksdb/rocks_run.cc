#include "server/store/rocksdb/rocks_run.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/human.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/sample/row_pieces.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

constexpr int64_t kMostKept = int64_t{64} << 20;
constexpr int64_t kKeptPart = 8;
// An append goes to the log at once and to a file later.
constexpr int64_t kWrittenTwice = 2;

int64_t Kept(const std::string& path) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(path, error);
  return error ? 0 : std::min<int64_t>(kMostKept, static_cast<int64_t>(space.capacity / kKeptPart));
}

// So many blocks may wait for a write that takes them away.
constexpr size_t kForgotten = 256;
constexpr int64_t kAllocationOverhead = 64;

// A value as it was read: the planes' CRCs, aligned, and the bytes behind them.
struct ReadBlock {
  rocksdb::PinnableSlice value;
  std::vector<uint32_t> crcs;
};

constexpr int64_t kSingleDeletes = 64;  // Of windows; more at once leave one mark that reads have to look for.

}  // namespace

RocksSpace::RocksSpace(std::string path, std::shared_ptr<const rocksdb::WriteBufferManager> buffers)
    : path_(std::move(path)), buffers_(std::move(buffers)), kept_(Kept(path_)) {}

absl::StatusOr<ByteReservation> RocksSpace::Promise(int64_t bytes) {
  absl::StatusOr<ByteReservation> promised = promised_.Reserve(kWrittenTwice * bytes);
  if (!promised.ok()) return promised;
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(path_, error);
  if (error) return promised;  // RocksDB will say what is wrong with the disk.
  const int64_t unwritten = static_cast<int64_t>(buffers_->memory_usage());
  if (static_cast<int64_t>(space.available) >= kept_ + unwritten + promised_.used()) return promised;
  if (ended_.exchange(false)) {
    MutexLock lock(mutex_);
    wanted_ = true;
    changed_.NotifyAll();
  }
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("the disk of ", path_, " is full: ", HumanBytes(static_cast<int64_t>(space.available)),
                                " are free, and ", HumanBytes(kept_ + unwritten),
                                " are kept for what must still be written; release samples, drop runs or make room"),
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
  // One that is to be written.
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
  // Its bytes are in the database. Before anybody else sees the block.
  void Written() { unwritten_.reset(); }

 private:
  RocksRun& run() const { return static_cast<RocksRun&>(home()); }

  absl::StatusOr<LoadedBlock> LoadBytes() const override {
    if (unwritten_) return LoadedBlock{nullptr, unwritten_->view()};
    const Geometry& geometry = *run().geometry_;
    auto read = std::make_shared<ReadBlock>();
    const RocksFamily& family = *run().family_;
    const std::string what = absl::StrCat("block ", id_, " with rows ", ToString(rows()));
    rocksdb::Status got = family.db->Get(rocksdb::ReadOptions(), family.handle, rocks::BlockKey(id_), &read->value);
    if (got.IsPathNotFound()) got = rocksdb::Status::Corruption(got.ToString());  // A file of the database is gone.
    if (absl::Status status = FromRocks(got, what); !status.ok()) return status;
    const size_t crc_bytes = sizeof(uint32_t) * geometry.num_moe_layers();
    const size_t bytes = geometry.block_bytes(rows().size(), codec());
    if (read->value.size() != crc_bytes + bytes) {
      return FromRocks(rocksdb::Status::Corruption(absl::StrCat(read->value.size(), " bytes")), what);
    }
    read->crcs.resize(geometry.num_moe_layers());
    std::memcpy(read->crcs.data(), read->value.data(), crc_bytes);
    const BlockView view{
        rows(), codec(), read->crcs, {reinterpret_cast<const uint8_t*>(read->value.data()) + crc_bytes, bytes}};
    return LoadedBlock{std::move(read), view};
  }

  const uint64_t id_;
  std::unique_ptr<const Block> unwritten_;
};

bool WriteGate::Enter() {
  MutexLock lock(mutex_);
  if (closed_) return false;
  ++inside_;
  return true;
}

void WriteGate::Leave() {
  MutexLock lock(mutex_);
  if (--inside_ == 0) left_.NotifyAll();
}

void WriteGate::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  while (inside_ > 0) left_.Wait(mutex_);
}

bool WriteGate::closed() const {
  MutexLock lock(mutex_);
  return closed_;
}

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
  const int64_t before = std::max(change.first_window, change.windows_before);
  if (before - change.first_window > kSingleDeletes) {
    batch.DeleteRange(family_->handle, rocks::WindowKey(change.producer, change.sample, change.first_window),
                      rocks::WindowKey(change.producer, change.sample, before));
  } else {
    for (int64_t window = change.first_window; window < before; ++window) {
      batch.Delete(family_->handle, rocks::WindowKey(change.producer, change.sample, window));
    }
  }
  const int64_t windows = WindowCount(change.lists.rows(), change.block_rows);
  const auto id_of = [](const StoredBlock& block) { return static_cast<const DiskBlock&>(block).id(); };
  for (int64_t window = change.first_window; window < windows; ++window) {
    const bool inside = change.first_window < window && window + 1 < windows;
    if (inside && IsQuietWindow(change.lists, change.block_rows, window)) continue;
    batch.Put(family_->handle, rocks::WindowKey(change.producer, change.sample, window),
              EncodeWindow(change.lists, change.pieces, change.block_rows, window, id_of));
  }
  batch.Put(family_->handle, rocks::HeadKey(change.producer, change.sample),
            EncodeHead(change.lists, change.block_rows));
  batch.Put(family_->handle, rocks::UseKey(change.producer, change.sample), rocks::EncodeTime(time_->NowMs()));
  absl::StatusOr<ByteReservation> room;
  if (change.grows || !change.added.empty()) {
    room = space_->Promise(static_cast<int64_t>(batch.GetDataSize()));
    if (!room.ok()) return room.status();
  }
  if (absl::Status status = Commit(std::move(batch)); !status.ok()) return status;
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
  const rocksdb::Slice parts[] = {
      {reinterpret_cast<const char*>(bytes.plane_crc32c.data()), bytes.plane_crc32c.size() * sizeof(uint32_t)},
      {reinterpret_cast<const char*>(bytes.bytes.data()), bytes.bytes.size()}};
  batch.Put(family_->handle, rocksdb::SliceParts(&key_part, 1), rocksdb::SliceParts(parts, 2));
  batch.Put(family_->handle, rocks::BlockIdKey(block.id()), rocksdb::Slice());
}

absl::Status RocksRun::Commit(rocksdb::WriteBatch batch) {
  if (!family_->writes.Enter()) return NoRunError(run_);
  absl::Status status = CommitInside(std::move(batch));
  family_->writes.Leave();
  return status;
}

absl::Status RocksRun::CommitInside(rocksdb::WriteBatch batch) {
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
  if (!*forgets_ || family_->writes.closed()) return;
  bool many = false;
  {
    MutexLock lock(mutex_);
    forgotten_.push_back(block);
    many = forgotten_.size() >= kForgotten;
  }
  space_->NoteEnd();
  if (!many) return;
  Commit(rocksdb::WriteBatch())
      .IgnoreError();  // What stays is taken away by a later write, or when it is opened again.
}

absl::Status RocksRun::GiveBack(std::atomic<bool>& stop) {
  const absl::Status taken_away = Commit(rocksdb::WriteBatch());
  if (family_->writes.closed()) return absl::OkStatus();  // All of it goes with its family.
  if (!taken_away.ok()) return taken_away;
  const absl::string_view what = "what ended cannot be given back";
  absl::Status flushed = FromRocks(family_->db->Flush(RocksFlushAtOnce(), family_->handle), what);
  if (!flushed.ok()) return flushed;
  rocksdb::CompactRangeOptions options;
  options.canceled = &stop;
  // It would write the rows that are wanted once more, for which there is no room now.
  options.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kDisable;
  return FromRocks(family_->db->CompactRange(options, family_->handle, nullptr, nullptr), what);
}

}  // namespace routing_replay::server
