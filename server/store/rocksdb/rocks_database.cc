#include "server/store/rocksdb/rocks_database.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/human.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/log/event_log.h"
#include "server/store/row_pieces.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

constexpr size_t kLongestLine = 1024;

// Sends RocksDB's warnings and errors to the server's log. If RocksDB had a log file in the database's directory, a
// full disk would end the process, because RocksDB asserts that it can write that file. Thread-safe.
class RocksLog final : public rocksdb::Logger {
 public:
  RocksLog() : Logger(rocksdb::InfoLogLevel::WARN_LEVEL) {}

  using Logger::Logv;
  void Logv(const char* format, va_list arguments) override {
    char line[kLongestLine];
    std::vsnprintf(line, sizeof(line), format, arguments);
    LogEvent(LogLevel::kWarning, "warning", absl::StrCat("rocksdb store: ", absl::StripTrailingAsciiWhitespace(line)));
  }
  // Ignores the settings that RocksDB prints when it starts.
  void LogHeader(const char*, va_list) override {}
};

constexpr uint64_t kBlobBytes = 4 << 10;
constexpr uint64_t kBlobFileBytes = 256 << 20;
constexpr uint64_t kMemtableBytes = 64 << 20;
// Memtables per run. If this many wait to be flushed, RocksDB stops the writes of all runs. The limit is not lower
// because memtables of dropped runs wait, too. The memory of all memtables together is limited separately.
constexpr int kMemtables = 4;
// Limit for all logs together. Without it, a run that is seldom written would keep all logs since its last write.
constexpr uint64_t kLogBytes = 256 << 20;
// The most bytes that appends may have together to share one sync; further appends wait for the next sync. If the first
// of them is small, RocksDB allows only an eighth of this.
constexpr uint64_t kGroupBytes = 64 << 20;
// Time between two searches for unneeded files, such as one that was being written when its run was dropped.
constexpr uint64_t kLookMicros = 10'000'000;
// The oldest blob files are rewritten once this share of their bytes is garbage.
constexpr double kGarbage = 0.25;

}  // namespace

rocksdb::DBOptions RocksDatabaseOptions(const std::shared_ptr<rocksdb::Cache>& cache, rocksdb::Env* env) {
  rocksdb::DBOptions options;
  if (env != nullptr) options.env = env;
  options.write_buffer_manager = std::make_shared<rocksdb::WriteBufferManager>(cache->GetCapacity() / 2, cache);
  options.create_if_missing = true;
  options.max_background_jobs = 4;
  options.info_log = std::make_shared<RocksLog>();
  options.bytes_per_sync = 1 << 20;
  options.max_total_wal_size = kLogBytes;
  options.delete_obsolete_files_period_micros = kLookMicros;
  options.max_write_batch_group_size_bytes = kGroupBytes;
  return options;
}

rocksdb::ColumnFamilyOptions RocksRunOptions(std::shared_ptr<rocksdb::Cache> cache) {
  rocksdb::ColumnFamilyOptions options;
  options.enable_blob_files = true;
  options.min_blob_size = kBlobBytes;
  options.blob_file_size = kBlobFileBytes;
  options.enable_blob_garbage_collection = true;
  options.blob_garbage_collection_force_threshold = kGarbage;
  options.write_buffer_size = kMemtableBytes;
  options.max_write_buffer_number = kMemtables;
  options.blob_cache = cache;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = std::move(cache);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::WriteOptions RocksWriteOptions(Durability durability) {
  rocksdb::WriteOptions options;
  options.disableWAL = durability == Durability::kMemory;
  options.sync = durability == Durability::kSynced;
  // Without this, a write to a dropped column family makes the database reject the writes of every run.
  options.ignore_missing_column_families = true;
  return options;
}

rocksdb::FlushOptions RocksFlushAtOnce() {
  rocksdb::FlushOptions options;
  options.allow_write_stall = true;
  return options;
}

absl::Status FromRocks(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat(what, ": ", status.ToString());
  if (status.IsCorruption() || status.IsNotFound()) {
    return MakeError(absl::StatusCode::kDataLoss, message, {.reason = Reason::kChecksum});
  }
  if (status.IsNoSpace()) {
    return MakeError(absl::StatusCode::kResourceExhausted, absl::StrCat("the disk is full: ", message),
                     {.reason = Reason::kOverBudget});
  }
  return MakeError(absl::StatusCode::kUnavailable, message, {.reason = Reason::kUnspecified});
}

}  // namespace routing_replay::server

namespace routing_replay::server::rocks {
namespace {

std::string BigEndian(uint64_t number) {
  std::string bytes(sizeof(number), '\0');
  for (size_t i = bytes.size(); i-- > 0; number >>= 8) bytes[i] = static_cast<char>(number & 0xff);
  return bytes;
}

uint64_t FromBigEndian(absl::string_view bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

std::string SampleKey(absl::string_view prefix, Producer producer, absl::string_view sample) {
  return absl::StrCat(prefix, std::string(1, static_cast<char>(producer)), sample);
}

}  // namespace

std::string RunFamily(absl::string_view run) { return absl::StrCat("run:", run); }

std::string RunKey(absl::string_view run) { return absl::StrCat(kRunPrefix, run); }

std::string HeadKey(Producer producer, absl::string_view sample) { return SampleKey(kHeadPrefix, producer, sample); }

std::string WindowKey(Producer producer, absl::string_view sample, int64_t window) {
  return absl::StrCat(SampleKey(kWindowPrefix, producer, sample), std::string(1, '\0'),
                      BigEndian(static_cast<uint64_t>(window)));
}

std::string BlockKey(uint64_t block) { return absl::StrCat(kBlockPrefix, BigEndian(block)); }

std::string BlockIdKey(uint64_t block) { return absl::StrCat(kBlockIdPrefix, BigEndian(block)); }

Producer ProducerOf(absl::string_view head_key) { return static_cast<Producer>(head_key[1]); }

absl::string_view SampleOf(absl::string_view head_key) { return head_key.substr(2); }

absl::string_view RunOf(absl::string_view run_key) { return run_key.substr(1); }

uint64_t BlockOf(absl::string_view block_id_key) { return FromBigEndian(block_id_key.substr(1)); }

}  // namespace routing_replay::server::rocks

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
  ++rejections_;
  return MakeError(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat("the disk of ", path_, " is full: ", HumanBytes(static_cast<int64_t>(space.available)),
                   " are free, but ", HumanBytes(kept_ + unwritten + promised_.used()),
                   " are kept for removals and for data still to be written; release samples, drop runs or free space"),
      {.reason = Reason::kOverBudget});
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
                   std::shared_ptr<const std::atomic<bool>> forgets, std::shared_ptr<RocksSpace> space)
    : BlockHome(std::move(usage)),
      family_(std::move(family)),
      run_(info.run),
      geometry_(info.geometry),
      write_options_(RocksWriteOptions(*info.options.durability)),
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
  ByteReservation room;
  if (change.grows || !change.added.empty()) {
    RR_ASSIGN_OR_RETURN(room, space_->Promise(static_cast<int64_t>(batch.GetDataSize())));
  }
  RR_RETURN_IF_ERROR(Commit(std::move(batch)));
  for (const std::shared_ptr<StoredBlock>& block : change.added) static_cast<DiskBlock&>(*block).Written();
  return absl::OkStatus();
}

absl::Status RocksRun::Remove(Producer producer, absl::string_view sample) {
  rocksdb::WriteBatch batch;
  batch.Delete(family_->handle, rocks::HeadKey(producer, sample));
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
  ended_ = true;
  MutexLock lock(mutex_);
  forgotten_.push_back(block);
}

void RocksRun::FreeSpace() {
  const int64_t rejections = space_->rejections();
  if (seen_rejections_.exchange(rejections) == rejections || !ended_.exchange(false)) return;
  if (!GiveBack().ok()) ended_ = true;  // Try again after the next write without room.
}

absl::Status RocksRun::GiveBack() {
  const absl::Status taken_away = Commit(rocksdb::WriteBatch());
  if (family_->closed) return absl::OkStatus();  // Everything is removed with the column family.
  if (!taken_away.ok()) return taken_away;
  const absl::string_view what = "the space of removed rows cannot be freed";
  RR_RETURN_IF_ERROR(FromRocks(family_->db->Flush(RocksFlushAtOnce(), family_->handle), what));
  rocksdb::CompactRangeOptions options;
  // Garbage collection would rewrite the rows that are still needed, and there is no room for them now.
  options.blob_garbage_collection_policy = rocksdb::BlobGarbageCollectionPolicy::kDisable;
  return FromRocks(family_->db->CompactRange(options, family_->handle, nullptr, nullptr), what);
}

}  // namespace routing_replay::server
