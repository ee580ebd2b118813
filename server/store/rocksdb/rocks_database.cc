#include "server/store/rocksdb/rocks_database.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/table.h>
#include <rocksdb/write_buffer_manager.h>

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/log/event_log.h"

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
// Memtables per run. If more of them wait to be flushed, RocksDB stops the writes of all runs. The limit is not lower
// because memtables of dropped runs wait, too. The memory of all memtables together is limited separately.
constexpr int kMemtables = 4;
// Limit for all logs together. Without it, a run that is seldom written would keep all logs since its last write.
constexpr uint64_t kLogBytes = 256 << 20;
// Most bytes of the appends that share one sync; others wait for the next one. If the first append of a group is small,
// RocksDB allows only an eighth of this.
constexpr uint64_t kGroupBytes = 64 << 20;
// Time between two searches for unneeded files, such as one that was being written when its run was dropped.
constexpr uint64_t kLookMicros = 10'000'000;
// A blob file with this share of garbage is rewritten.
constexpr double kGarbage = 0.25;

constexpr char kWhat[] = "the database rejects writes";

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

absl::Status RocksHealth::Get() const {
  MutexLock lock(mutex_);
  return status_;
}

void RocksHealth::OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status* error) {
  MutexLock lock(mutex_);
  // After less severe errors the database is still writable.
  if (error->severity() >= rocksdb::Status::kHardError) status_ = FromRocks(*error, kWhat);
}

void RocksHealth::OnErrorRecoveryEnd(const rocksdb::BackgroundErrorRecoveryInfo& info) {
  MutexLock lock(mutex_);
  status_ = FromRocks(info.new_bg_error, kWhat);
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

std::string UseKey(Producer producer, absl::string_view sample) { return SampleKey(kUsePrefix, producer, sample); }

std::string BlockKey(uint64_t block) { return absl::StrCat(kBlockPrefix, BigEndian(block)); }

std::string BlockIdKey(uint64_t block) { return absl::StrCat(kBlockIdPrefix, BigEndian(block)); }

Producer ProducerOf(absl::string_view head_key) { return static_cast<Producer>(head_key[1]); }

absl::string_view SampleOf(absl::string_view head_key) { return head_key.substr(2); }

absl::string_view RunOf(absl::string_view run_key) { return run_key.substr(1); }

uint64_t BlockOf(absl::string_view block_id_key) { return FromBigEndian(block_id_key.substr(1)); }

std::string EncodeTime(int64_t ms) { return BigEndian(static_cast<uint64_t>(ms)); }

int64_t DecodeTime(absl::string_view value) {
  return value.size() == sizeof(uint64_t) ? static_cast<int64_t>(FromBigEndian(value)) : 0;
}

}  // namespace routing_replay::server::rocks
