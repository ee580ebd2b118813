#include "server/store/rocksdb/rocks_recovery.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/sample/sample_rules.h"

namespace routing_replay::server {
namespace {

rocksdb::Status Open(const std::string& path, const rocksdb::Options& options, rocksdb::WALRecoveryMode mode,
                     OpenedDatabase& opened) {
  rocksdb::DBOptions database(options);
  database.wal_recovery_mode = mode;
  std::vector<std::string> names;
  if (!rocksdb::DB::ListColumnFamilies(database, path, &names).ok()) names = {rocksdb::kDefaultColumnFamilyName};
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  descriptors.reserve(names.size());
  for (const std::string& name : names) descriptors.emplace_back(name, options);
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(database, path, descriptors, &handles, &db);
  if (!status.ok()) return status;
  opened.db.reset(db);
  for (size_t i = 0; i < names.size(); ++i) {
    auto family = std::make_shared<RocksFamily>(opened.db, handles[i]);
    if (names[i] == rocksdb::kDefaultColumnFamilyName) {
      opened.by_default = std::move(family);
    } else {
      opened.families[names[i]] = std::move(family);
    }
  }
  return status;
}

constexpr absl::string_view kPutBack = "put a copy of the directory back, or begin with an empty one";

// What to do, before RocksDB's own words.
std::string Advice(const rocksdb::Status& status) {
  // RocksDB has no code for it.
  if (status.IsIOError() && absl::StrContains(status.ToString(), "lock ")) return " is open in another process";
  if (status.IsCorruption()) return absl::StrCat(" has files that are damaged or missing; ", kPutBack);
  return "";
}

absl::Status Missing(const std::string& path, absl::string_view file) {
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("rocksdb:", path, " has no ", file, "; ", kPutBack),
                   {.reason = Reason::kChecksum});
}

// DATA_LOSS if what tells which files are the database is not there, and they are. RocksDB would make a new database
// and take them away. (A process that was killed while it made one left none of them.)
absl::Status CheckIsWhole(rocksdb::Env& env, const std::string& path) {
  std::string manifest;
  if (rocksdb::ReadFileToString(&env, path + "/CURRENT", &manifest).ok()) {
    absl::StripAsciiWhitespace(&manifest);
    return env.FileExists(absl::StrCat(path, "/", manifest)).IsNotFound() ? Missing(path, manifest) : absl::OkStatus();
  }
  std::vector<std::string> names;
  env.GetChildren(path, &names).PermitUncheckedError();  // Of a directory that is not there: none.
  const bool headless = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return absl::EndsWith(name, ".sst") || absl::EndsWith(name, ".blob") || absl::EndsWith(name, ".log");
  });
  return headless ? Missing(path, "CURRENT") : absl::OkStatus();
}

constexpr absl::string_view kUnnoted = "the damage of the log cannot be noted";

std::string DamageNote(const std::string& path) { return path + "/log-damaged"; }

absl::Status SyncDirectory(rocksdb::Env& env, const std::string& path) {
  std::unique_ptr<rocksdb::Directory> directory;
  rocksdb::Status status = env.NewDirectory(path, &directory);
  if (status.ok()) status = directory->Fsync();
  return FromRocks(status, kUnnoted);
}

// On the disk when it returns.
absl::Status NoteLogDamage(rocksdb::Env& env, const std::string& path) {
  absl::Status status =
      FromRocks(rocksdb::WriteStringToFile(&env, "", DamageNote(path), /*should_sync=*/true), kUnnoted);
  return status.ok() ? SyncDirectory(env, path) : status;
}

// Whether the directory holds a database without any log, which an open one always has.
bool LogIsGone(rocksdb::Env& env, const std::string& path) {
  std::vector<std::string> names;
  env.GetChildren(path, &names).PermitUncheckedError();  // Of a directory that is not there: none.
  return env.FileExists(path + "/CURRENT").ok() &&
         std::none_of(names.begin(), names.end(), [](const std::string& name) { return absl::EndsWith(name, ".log"); });
}

constexpr absl::string_view kClosed = "closed";

std::string OpenBy(const std::string& boot_id) { return absl::StrCat("open ", boot_id); }

absl::Status Mark(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& value, int64_t now_ms) {
  rocksdb::WriteBatch batch;
  batch.Put(family, rocks::kEndKey, value);
  batch.Put(family, rocks::kSeenKey, rocks::EncodeTime(now_ms));
  rocksdb::Status status = db.Write(RocksWriteOptions(Durability::kSynced), &batch);
  if (status.ok()) status = db.Flush(RocksFlushAtOnce(), family);
  return FromRocks(status, "the database cannot be written to");
}

// Longer than any TTL, twice.
constexpr int64_t kLongestIdleMs = std::chrono::milliseconds(std::chrono::hours(24 * 365)).count();
constexpr absl::string_view kUnreadable = "the database cannot be read";
constexpr uint32_t kChangesAtOnce = 1000;

absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Calls `each` with every key that begins with `prefix`, and its value, ascending, as long as it gives OK.
template <typename Each>
absl::Status ForEach(const RocksFamily& family, absl::string_view prefix, const Each& each) {
  const std::unique_ptr<rocksdb::Iterator> it(family.db->NewIterator(rocksdb::ReadOptions(), family.handle));
  for (it->Seek({prefix.data(), prefix.size()}); it->Valid(); it->Next()) {
    if (View(it->key()).substr(0, prefix.size()) != prefix) break;
    if (absl::Status status = each(View(it->key()), View(it->value())); !status.ok()) return status;
  }
  return FromRocks(it->status(), kUnreadable);
}

class Recovery {
 public:
  Recovery(const RocksFamily& family, int32_t block_rows, bool doubtful, const StoreTime& time,
           const StoreTime& use_time, RocksRun& run, RecoveryReport& report)
      : family_(family),
        block_rows_(block_rows),
        doubtful_(doubtful),
        now_ms_(time.NowMs()),
        use_now_ms_(use_time.NowMs()),
        run_(run),
        report_(report) {}

  absl::StatusOr<std::vector<KeptSample>> Run() {
    absl::Status status = ForEach(family_, std::string(1, rocks::kBlockIdPrefix), [&](absl::string_view key, auto) {
      present_.insert(rocks::BlockOf(key));
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    status = ForEach(family_, std::string(1, rocks::kHeadPrefix),
                     [&](absl::string_view key, absl::string_view head) { return AddSample(key, head); });
    if (!status.ok()) return status;
    RemoveOrphans();
    status = WriteChanges();
    if (!status.ok()) return status;
    return std::move(samples_);
  }

 private:
  absl::Status AddSample(absl::string_view key, absl::string_view head) {
    const Producer producer = rocks::ProducerOf(key);
    const std::string sample(rocks::SampleOf(key));
    std::vector<std::string> windows;  // Ascending; some may have no record.
    std::string prefix = rocks::WindowKey(producer, sample, 0);
    prefix.resize(prefix.size() - sizeof(int64_t));
    absl::Status status = ForEach(family_, prefix, [&](absl::string_view, absl::string_view window) {
      windows.emplace_back(window);
      return absl::OkStatus();
    });
    if (!status.ok()) return status;
    const auto block_at = [&](const BlockRef& ref) { return BlockAt(ref); };
    absl::StatusOr<SampleContent> content = DecodeContent(head, windows, block_rows_, block_at);
    if (!content.ok()) return content.status();
    if (doubtful_) {
      ++report_.doubtful_samples;
      MarkDoubtful(*content, now_ms_, content_ids_);
      changes_.Put(family_.handle, {key.data(), key.size()}, EncodeHead(*content, block_rows_));
      if (changes_.Count() >= kChangesAtOnce) status = WriteChanges();
      if (!status.ok()) return status;
    }
    ++report_.samples;
    report_.rows += content->rows();
    for (const RowPiece& piece : content->pieces.all()) shown_.insert(numbers_.at(piece.stored.get()));
    samples_.push_back({producer, sample, Idle(producer, sample), *std::move(content)});
    return absl::OkStatus();
  }

  // Nothing of a sample whose last use is not to be found.
  std::chrono::milliseconds Idle(Producer producer, const std::string& sample) const {
    std::string value;
    const rocksdb::Status got =
        family_.db->Get(rocksdb::ReadOptions(), family_.handle, rocks::UseKey(producer, sample), &value);
    const int64_t used_ms = got.ok() ? rocks::DecodeTime(value) : use_now_ms_;
    return std::chrono::milliseconds(std::clamp<int64_t>(use_now_ms_ - used_ms, 0, kLongestIdleMs));
  }

  // One object for all samples that show a block. Null if it is not there, or if two samples say different things of
  // it: neither is to be trusted.
  std::shared_ptr<StoredBlock> BlockAt(const BlockRef& ref) {
    if (!present_.contains(ref.id)) return nullptr;
    std::shared_ptr<StoredBlock>& block = blocks_[ref.id];
    if (block == nullptr) {
      block = run_.Found(ref);
      numbers_[block.get()] = ref.id;
    }
    return block->rows() == ref.rows && block->codec() == ref.codec ? block : nullptr;
  }

  void RemoveOrphans() {
    for (const uint64_t block : present_) {
      if (shown_.contains(block)) continue;
      ++report_.orphan_blocks;
      changes_.Delete(family_.handle, rocks::BlockKey(block));
      changes_.Delete(family_.handle, rocks::BlockIdKey(block));
    }
  }

  // Logged, whatever the run's durability is: what marks the samples must not be lost as they were.
  absl::Status WriteChanges() {
    const rocksdb::Status written = family_.db->Write(RocksWriteOptions(Durability::kWritten), &changes_);
    changes_.Clear();
    return FromRocks(written, "the database cannot be written to");
  }

  const RocksFamily& family_;
  const int32_t block_rows_;
  const bool doubtful_;
  const int64_t now_ms_;
  const int64_t use_now_ms_;
  RocksRun& run_;
  RecoveryReport& report_;
  ContentIds content_ids_;
  rocksdb::WriteBatch changes_;
  std::set<uint64_t> present_;
  std::set<uint64_t> shown_;
  std::map<uint64_t, std::shared_ptr<StoredBlock>> blocks_;
  std::map<const StoredBlock*, uint64_t> numbers_;
  std::vector<KeptSample> samples_;
};

}  // namespace

bool LogDamageNoted(rocksdb::Env& env, const std::string& path) { return env.FileExists(DamageNote(path)).ok(); }

absl::Status ForgetLogDamage(rocksdb::Env& env, const std::string& path) {
  if (!LogDamageNoted(env, path)) return absl::OkStatus();
  return FromRocks(env.DeleteFile(DamageNote(path)), kUnnoted);
}

absl::StatusOr<OpenedDatabase> OpenDatabase(const std::string& path, const rocksdb::Options& options) {
  // RocksDB makes it, too, but warns that it is not there. Where it cannot be made, RocksDB says why.
  std::error_code ignored;
  std::filesystem::create_directory(path, ignored);
  if (absl::Status whole = CheckIsWhole(*options.env, path); !whole.ok()) return whole;
  rocksdb::Env& env = *options.env;
  const bool noted_before = LogDamageNoted(env, path);
  if (LogIsGone(env, path)) {
    if (absl::Status status = NoteLogDamage(env, path); !status.ok()) return status;
  }
  OpenedDatabase opened;
  rocksdb::Status status = Open(path, options, rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords, opened);
  if (status.IsCorruption()) {
    if (absl::Status noted = NoteLogDamage(env, path); !noted.ok()) return noted;
    status = Open(path, options, rocksdb::WALRecoveryMode::kPointInTimeRecovery, opened);
  }
  if (status.ok()) return opened;
  if (!noted_before) ForgetLogDamage(env, path).IgnoreError();  // A note that stays makes revisions new, no more.
  return FromRocks(status, absl::StrCat("rocksdb:", path, Advice(status)));
}

bool MayLack(LastEnd end, Durability durability) {
  if (end == LastEnd::kClean) return false;
  if (end == LastEnd::kDamaged) return true;
  if (durability == Durability::kSynced) return false;
  return durability == Durability::kMemory || end == LastEnd::kUnknown;
}

std::string MachineBootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

absl::StatusOr<LastEnd> ReadLastEnd(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& boot_id,
                                    bool log_damaged) {
  std::string mark;
  const rocksdb::Status got = db.Get(rocksdb::ReadOptions(), family, rocks::kEndKey, &mark);
  const LastEnd unknown = log_damaged ? LastEnd::kDamaged : LastEnd::kUnknown;
  if (got.IsNotFound()) return unknown;
  if (absl::Status status = FromRocks(got, "the database cannot be read"); !status.ok()) return status;
  if (mark == kClosed) return LastEnd::kClean;
  return !log_damaged && !boot_id.empty() && mark == OpenBy(boot_id) ? LastEnd::kSameBoot : unknown;
}

absl::Status MarkOpen(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& boot_id,
                      int64_t now_ms) {
  return Mark(db, family, OpenBy(boot_id), now_ms);
}

absl::Status MarkClosed(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, int64_t now_ms) {
  return Mark(db, family, std::string(kClosed), now_ms);
}

int64_t LastMarkMs(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family) {
  std::string value;
  return db.Get(rocksdb::ReadOptions(), family, rocks::kSeenKey, &value).ok() ? rocks::DecodeTime(value) : 0;
}

absl::StatusOr<std::vector<KeptSample>> RecoverSamples(const RocksFamily& family, int32_t block_rows, bool doubtful,
                                                       const StoreTime& time, const StoreTime& use_time, RocksRun& run,
                                                       RecoveryReport& report) {
  return Recovery(family, block_rows, doubtful, time, use_time, run, report).Run();
}

std::string Describe(const RecoveryReport& report) {
  std::string line = absl::StrCat("found ", report.runs, " runs, ", report.samples, " samples, ", report.rows,
                                  " rows; removed ", report.orphan_blocks, " orphan blocks");
  if (report.log_damaged) {
    absl::StrAppend(&line, "; the log of what was written last is damaged or gone: other runs and samples may be too");
  }
  if (report.doubtful_runs > 0) {
    absl::StrAppend(&line, report.log_damaged ? ", " : "; the last end was not clean: ", report.doubtful_runs,
                    " runs may lack what was acknowledged last, and their ", report.doubtful_samples,
                    " samples have new revisions");
  }
  if (!report.damaged_runs.empty()) {
    absl::StrAppend(&line, "; damaged, not served and left alone: runs ", absl::StrJoin(report.damaged_runs, ", "));
  }
  return line;
}

}  // namespace routing_replay::server
