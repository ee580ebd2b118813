#include "server/store/rocksdb/rocks_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/records/records.h"
#include "server/store/rocksdb/rocks_database.h"
#include "server/store/sample_rules.h"
#include "server/store/store_time.h"

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

constexpr absl::string_view kPutBack = "restore a copy of the directory, or begin with an empty one";

// What is wrong and what to do, put between the path and RocksDB's own message.
std::string Advice(const rocksdb::Status& status) {
  // RocksDB has no status code for a locked database.
  if (status.IsIOError() && absl::StrContains(status.ToString(), "lock ")) return " is open in another process";
  if (status.IsCorruption()) return absl::StrCat(" has files that are damaged or missing; ", kPutBack);
  return "";
}

absl::Status Missing(const std::string& path, absl::string_view file) {
  return MakeError(absl::StatusCode::kDataLoss, absl::StrCat("rocksdb:", path, " has no ", file, "; ", kPutBack),
                   {.reason = Reason::kChecksum});
}

// DATA_LOSS if CURRENT names a missing file, or if it is missing although files with data exist. In the second case
// RocksDB would make a new database and delete these files. (A process killed while it made a database left none.)
absl::Status CheckIsWhole(rocksdb::Env& env, const std::string& path) {
  std::string manifest;
  if (rocksdb::ReadFileToString(&env, path + "/CURRENT", &manifest).ok()) {
    absl::StripAsciiWhitespace(&manifest);
    return env.FileExists(absl::StrCat(path, "/", manifest)).IsNotFound() ? Missing(path, manifest) : absl::OkStatus();
  }
  std::vector<std::string> names;
  env.GetChildren(path, &names).PermitUncheckedError();  // A missing directory has no files.
  const bool headless = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return absl::EndsWith(name, ".sst") || absl::EndsWith(name, ".blob") || absl::EndsWith(name, ".log");
  });
  return headless ? Missing(path, "CURRENT") : absl::OkStatus();
}

// True if the directory holds a database whose logs were all lost: RocksDB always leaves one.
bool LogIsGone(rocksdb::Env& env, const std::string& path) {
  std::vector<std::string> names;
  env.GetChildren(path, &names).PermitUncheckedError();  // A missing directory has no files.
  return env.FileExists(path + "/CURRENT").ok() &&
         std::none_of(names.begin(), names.end(), [](const std::string& name) { return absl::EndsWith(name, ".log"); });
}

constexpr absl::string_view kUnreadable = "the database cannot be read";
constexpr uint32_t kChangesAtOnce = 1000;

absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

constexpr absl::string_view kClosed = "closed", kDamaged = "damaged";

std::string OpenBy(const std::string& boot_id) { return absl::StrCat("open ", boot_id); }

// Stores the mark, which tells the next start how this process ended. Flushes it from the log to another file, so that
// damage to the log cannot bring back the previous mark. Before kClosed is stored, all other data must be flushed, too.
absl::Status Mark(const RocksFamily& family, absl::string_view value) {
  rocksdb::Status status = family.db->Put(RocksWriteOptions(Durability::kSynced), family.handle, rocks::kEndKey,
                                          {value.data(), value.size()});
  if (status.ok()) status = family.db->Flush(RocksFlushAtOnce(), family.handle);
  return FromRocks(status, "the database cannot be written to");
}

absl::Status ReadMark(bool log_damaged, const std::string& boot_id, OpenedDatabase& opened) {
  const RocksFamily& family = *opened.by_default;
  std::string mark;
  const rocksdb::Status got = family.db->Get(rocksdb::ReadOptions(), family.handle, rocks::kEndKey, &mark);
  if (!got.ok() && !got.IsNotFound()) return FromRocks(got, kUnreadable);
  if (mark == kClosed) return absl::OkStatus();
  if (log_damaged || mark == kDamaged) {
    opened.last_end = LastEnd::kDamaged;
    return Mark(family, kDamaged);
  }
  opened.last_end = !boot_id.empty() && mark == OpenBy(boot_id) ? LastEnd::kSameBoot : LastEnd::kUnknown;
  return absl::OkStatus();
}

// Calls `each` with every key that begins with `prefix`, and its value, ascending, until it returns an error.
absl::Status ForEach(const RocksFamily& family, absl::string_view prefix,
                     const std::function<absl::Status(absl::string_view key, absl::string_view value)>& each) {
  const std::unique_ptr<rocksdb::Iterator> it(family.db->NewIterator(rocksdb::ReadOptions(), family.handle));
  for (it->Seek({prefix.data(), prefix.size()}); it->Valid(); it->Next()) {
    if (View(it->key()).substr(0, prefix.size()) != prefix) break;
    RR_RETURN_IF_ERROR(each(View(it->key()), View(it->value())));
  }
  return FromRocks(it->status(), kUnreadable);
}

// True if runs of this durability may have lost their last acknowledged changes. Changes of durability `memory` are
// lost if the process was killed, `written` ones only if the machine may have restarted as well, and `synced` ones only
// if the log is damaged.
bool MayLack(LastEnd end, Durability durability) {
  if (end == LastEnd::kClean) return false;
  if (end == LastEnd::kDamaged) return true;
  if (durability == Durability::kSynced) return false;
  return durability == Durability::kMemory || end == LastEnd::kUnknown;
}

// Reads the samples of a run that nobody writes to. Deletes blocks that no sample refers to. `doubtful`: marks each
// sample (MarkDoubtful). DATA_LOSS if the records of a sample cannot be read or contradict each other; UNAVAILABLE,
// RESOURCE_EXHAUSTED if the database cannot be written.
class Recovery {
 public:
  Recovery(const RocksFamily& family, int32_t block_rows, bool doubtful, const StoreTime& time, RocksRun& run,
           RecoveryReport& report)
      : family_(family),
        block_rows_(block_rows),
        doubtful_(doubtful),
        now_ms_(time.NowMs()),
        run_(run),
        report_(report) {}

  absl::StatusOr<std::vector<KeptSample>> Run() {
    RR_RETURN_IF_ERROR(ForEach(family_, rocks::kBlockIdPrefix, [&](absl::string_view key, auto) {
      present_.insert(rocks::BlockOf(key));
      return absl::OkStatus();
    }));
    RR_RETURN_IF_ERROR(ForEach(family_, rocks::kHeadPrefix,
                               [&](absl::string_view key, absl::string_view head) { return AddSample(key, head); }));
    RemoveOrphans();
    RR_RETURN_IF_ERROR(WriteChanges());
    return std::move(samples_);
  }

 private:
  absl::Status AddSample(absl::string_view key, absl::string_view head) {
    const Producer producer = rocks::ProducerOf(key);
    const std::string sample(rocks::SampleOf(key));
    std::vector<std::string> windows;  // Ascending; some may have no record.
    std::string prefix = rocks::WindowKey(producer, sample, 0);
    prefix.resize(prefix.size() - sizeof(int64_t));
    RR_RETURN_IF_ERROR(ForEach(family_, prefix, [&](absl::string_view, absl::string_view window) {
      windows.emplace_back(window);
      return absl::OkStatus();
    }));
    const auto block_at = [&](const BlockRef& ref) { return BlockAt(ref); };
    RR_ASSIGN_OR_RETURN(SampleContent content, DecodeContent(head, windows, block_rows_, block_at));
    if (doubtful_) {
      ++report_.doubtful_samples;
      MarkDoubtful(content, now_ms_, content_ids_);
      changes_.Put(family_.handle, {key.data(), key.size()}, EncodeHead(content));
      if (changes_.Count() >= kChangesAtOnce) {
        RR_RETURN_IF_ERROR(WriteChanges());
      }
    }
    ++report_.samples;
    samples_.push_back({producer, sample, std::move(content)});
    return absl::OkStatus();
  }

  // Returns the stored block; all samples that refer to it share one object. Null if the block is missing, or if
  // another sample described it differently: then neither description can be trusted.
  std::shared_ptr<StoredBlock> BlockAt(const BlockRef& ref) {
    if (!present_.contains(ref.id)) return nullptr;
    std::shared_ptr<StoredBlock>& block = blocks_[ref.id];
    if (block == nullptr) block = run_.Found(ref);
    return block->rows() == ref.rows && block->codec() == ref.codec ? block : nullptr;
  }

  void RemoveOrphans() {
    for (const uint64_t block : present_) {
      if (blocks_.contains(block)) continue;
      changes_.Delete(family_.handle, rocks::BlockKey(block));
      changes_.Delete(family_.handle, rocks::BlockIdKey(block));
    }
  }

  // Always written to the log, whatever the run's durability is, because the new revisions of samples must not be lost.
  absl::Status WriteChanges() {
    const rocksdb::Status written = family_.db->Write(RocksWriteOptions(Durability::kWritten), &changes_);
    changes_.Clear();
    return FromRocks(written, "the database cannot be written to");
  }

  const RocksFamily& family_;
  const int32_t block_rows_;
  const bool doubtful_;
  const int64_t now_ms_;
  RocksRun& run_;
  RecoveryReport& report_;
  ContentIds content_ids_;
  rocksdb::WriteBatch changes_;
  std::set<uint64_t> present_;
  std::map<uint64_t, std::shared_ptr<StoredBlock>> blocks_;  // Blocks that samples refer to.
  std::vector<KeptSample> samples_;
};

class RocksKeeper final : public RunKeeper {
 public:
  explicit RocksKeeper(const RocksStoreOptions& options)
      : path_(options.path),
        durability_(options.durability),
        boot_id_(options.boot_id),
        cache_(rocksdb::NewLRUCache(options.cache_bytes)),
        env_(options.env),
        time_(*options.memory.clock),
        budget_(*options.memory.budget) {}
  ~RocksKeeper() override {
    // If the mark cannot be written, the next start assumes a crash, which is safe.
    if (started_) Close().IgnoreError();
  }

  absl::Status Open();
  absl::StatusOr<std::vector<KeptRun>> Recover(RecoveryReport& report);
  // Call after Recover, and before anything is acknowledged.
  absl::Status Start();

  std::string name() const override { return "rocksdb"; }
  DurabilityLevels durability() const override { return {durability_, Durability::kSynced}; }
  absl::Status Health() const override;
  void Begin() override { *forgets_ = true; }
  void End() override { *forgets_ = false; }
  absl::StatusOr<std::shared_ptr<BlockHome>> Create(const RunInfo& run) override;
  bool Damaged(absl::string_view run) const override { return damaged_.contains(run); }
  absl::Status Drop(absl::string_view run) override;

 private:
  // Flushes what is only in the log or in memory, of all runs, to files, and then marks the database as closed.
  absl::Status Close();
  void FlushSoon(const RocksFamily& family);
  absl::StatusOr<KeptRun> RecoverRun(absl::string_view run, absl::string_view record, RecoveryReport& report);
  // Drops the family of a run without a record. Nothing is written to it afterwards, even if this fails.
  absl::Status DropFamily(const std::string& name);
  std::shared_ptr<RocksRun> MakeRun(std::shared_ptr<RocksFamily> family, const RunInfo& run) {
    return std::make_shared<RocksRun>(std::make_shared<RunUsage>(budget_), std::move(family), run, forgets_, space_);
  }

  const std::string path_;
  const Durability durability_;
  const std::string boot_id_;
  const std::shared_ptr<rocksdb::Cache> cache_;
  rocksdb::Env* const env_;
  const StoreTime time_;
  ByteBudget& budget_;
  const std::shared_ptr<std::atomic<bool>> forgets_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<RocksSpace> space_;  // Set from Open on.
  OpenedDatabase database_;            // Also set from Open on. Has families of dropped runs if DropFamily failed.
  std::set<std::string, std::less<>> damaged_;  // Runs that are kept but not served.
  bool started_ = false;
};

absl::Status RocksKeeper::Open() {
  const rocksdb::Options options(RocksDatabaseOptions(cache_, env_), RocksRunOptions(cache_));
  RR_ASSIGN_OR_RETURN(database_, OpenDatabase(path_, options, boot_id_));
  space_ = std::make_shared<RocksSpace>(path_, options.write_buffer_manager);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KeptRun>> RocksKeeper::Recover(RecoveryReport& report) {
  report.log_damaged = database_.last_end == LastEnd::kDamaged;
  std::vector<KeptRun> runs;
  std::map<std::string, std::shared_ptr<RocksFamily>> unknown = database_.families;
  const auto take = [&](absl::string_view key, absl::string_view record) {
    const std::string name(rocks::RunOf(key));
    if (unknown.erase(rocks::RunFamily(name)) == 0) return absl::OkStatus();  // The run was being dropped.
    const RecoveryReport before = report;
    absl::StatusOr<KeptRun> run = RecoverRun(name, record, report);
    if (run.ok()) {
      ++report.runs;
      runs.push_back(*std::move(run));
    } else if (absl::IsDataLoss(run.status())) {
      report = before;
      report.damaged_runs.push_back(name);
      damaged_.insert(name);
    } else {
      return run.status();
    }
    return absl::OkStatus();
  };
  RR_RETURN_IF_ERROR(ForEach(*database_.by_default, rocks::kRunPrefix, take));
  // These runs were being made or dropped when the process ended.
  for (const auto& [name, family] : unknown) {
    RR_RETURN_IF_ERROR(DropFamily(name));
  }
  return runs;
}

absl::StatusOr<KeptRun> RocksKeeper::RecoverRun(absl::string_view name, absl::string_view record,
                                                RecoveryReport& report) {
  RR_ASSIGN_OR_RETURN(RunInfo info, DecodeRun(record));
  if (info.run != name) return DamagedRecord("the record of a run has another run's name");
  const std::shared_ptr<RocksFamily>& family = database_.families.at(rocks::RunFamily(name));
  const std::shared_ptr<RocksRun> run = MakeRun(family, info);
  const bool doubtful = MayLack(database_.last_end, *info.options.durability);
  report.doubtful_runs += doubtful ? 1 : 0;
  RR_ASSIGN_OR_RETURN(auto samples, Recovery(*family, info.options.block_rows, doubtful, time_, *run, report).Run());
  return KeptRun{std::move(info), run, std::move(samples)};
}

// Tries an empty write: while the database rejects writes, it rejects that, too. A write that would only have to wait
// (IsIncomplete) is no failure.
absl::Status RocksKeeper::Health() const {
  rocksdb::WriteOptions options;
  options.no_slowdown = true;
  rocksdb::WriteBatch nothing;
  const rocksdb::Status status = database_.db->Write(options, &nothing);
  return status.IsIncomplete() ? absl::OkStatus() : FromRocks(status, "the database rejects writes");
}

absl::Status RocksKeeper::Start() {
  RR_RETURN_IF_ERROR(Mark(*database_.by_default, OpenBy(boot_id_)));
  started_ = true;
  return absl::OkStatus();
}

absl::Status RocksKeeper::Close() {
  for (const auto& [name, family] : database_.families) {
    const rocksdb::Status flushed = database_.db->Flush(RocksFlushAtOnce(), family->handle);
    RR_RETURN_IF_ERROR(FromRocks(flushed, "the run cannot be written"));
  }
  return Mark(*database_.by_default, kClosed);
}

absl::StatusOr<std::shared_ptr<BlockHome>> RocksKeeper::Create(const RunInfo& info) {
  if (damaged_.contains(info.run)) {
    return MakeError(
        absl::StatusCode::kDataLoss,
        absl::StrCat("run ", info.run, " is damaged in the database; its remains are kept until the run is dropped"),
        {.reason = Reason::kChecksum});
  }
  const std::string name = rocks::RunFamily(info.run);
  rocksdb::ColumnFamilyHandle* handle = nullptr;
  constexpr absl::string_view what = "the run cannot be written";
  RR_RETURN_IF_ERROR(space_->Promise(0).status());
  RR_RETURN_IF_ERROR(DropFamily(name));
  RR_RETURN_IF_ERROR(FromRocks(database_.db->CreateColumnFamily(RocksRunOptions(cache_), name, &handle), what));
  auto family = std::make_shared<RocksFamily>(database_.db, handle);
  rocksdb::WriteBatch batch;
  batch.Put(database_.by_default->handle, rocks::RunKey(info.run), EncodeRun(info));
  const absl::Status status = FromRocks(database_.db->Write(RocksWriteOptions(Durability::kSynced), &batch), what);
  database_.families[name] = family;
  if (!status.ok()) {
    DropFamily(name).IgnoreError();
    return status;
  }
  FlushSoon(*database_.by_default);  // Otherwise this record alone would keep the log, with all runs' rows.
  return MakeRun(std::move(family), info);
}

absl::Status RocksKeeper::Drop(absl::string_view run) {
  rocksdb::WriteBatch batch;
  batch.Delete(database_.by_default->handle, rocks::RunKey(run));
  RR_RETURN_IF_ERROR(
      FromRocks(database_.db->Write(RocksWriteOptions(Durability::kSynced), &batch), "the run cannot be dropped"));
  damaged_.erase(std::string(run));
  // Without its record the run is gone, whatever happens to its family: a family that cannot be dropped now is dropped
  // when the run is made again, or at the next start.
  DropFamily(rocks::RunFamily(run)).IgnoreError();
  // The logs with the dropped run's rows are deleted once the other runs' data in them is flushed.
  FlushSoon(*database_.by_default);
  for (const auto& [name, family] : database_.families) FlushSoon(*family);
  return absl::OkStatus();
}

void RocksKeeper::FlushSoon(const RocksFamily& family) {
  rocksdb::FlushOptions options = RocksFlushAtOnce();
  options.wait = false;
  database_.db->Flush(options, family.handle).PermitUncheckedError();  // If it fails, a log file stays longer.
}

absl::Status RocksKeeper::DropFamily(const std::string& name) {
  const auto family = database_.families.find(name);
  if (family == database_.families.end()) return absl::OkStatus();
  family->second->CloseForWrites();
  RR_RETURN_IF_ERROR(
      FromRocks(database_.db->DropColumnFamily(family->second->handle), "the run's rows cannot be dropped"));
  database_.families.erase(family);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenedDatabase> OpenDatabase(const std::string& path, const rocksdb::Options& options,
                                            const std::string& boot_id) {
  // RocksDB would make the directory, too, but also warn that it is missing. If this fails, RocksDB reports why.
  std::error_code ignored;
  std::filesystem::create_directory(path, ignored);
  RR_RETURN_IF_ERROR(CheckIsWhole(*options.env, path));
  bool log_damaged = LogIsGone(*options.env, path);
  OpenedDatabase opened;
  rocksdb::Status status = Open(path, options, rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords, opened);
  if (status.IsCorruption()) {
    log_damaged = true;
    status = Open(path, options, rocksdb::WALRecoveryMode::kPointInTimeRecovery, opened);
  }
  if (!status.ok()) return FromRocks(status, absl::StrCat("rocksdb:", path, Advice(status)));
  RR_RETURN_IF_ERROR(ReadMark(log_damaged, boot_id, opened));
  return opened;
}

std::string MachineBootId() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string Describe(const RecoveryReport& report) {
  std::string line = absl::StrCat("found ", report.runs, " runs, ", report.samples, " samples");
  if (report.log_damaged) {
    absl::StrAppend(
        &line, "; the log of the last writes is damaged or missing, so other runs and samples may be missing, too");
  }
  if (report.doubtful_runs > 0) {
    absl::StrAppend(&line, report.log_damaged ? ", " : "; the last stop was not clean: ", report.doubtful_runs,
                    " runs may have lost their last acknowledged changes, and their ", report.doubtful_samples,
                    " samples have new revisions");
  }
  if (!report.damaged_runs.empty()) {
    absl::StrAppend(&line, "; damaged runs, kept but not served: ", absl::StrJoin(report.damaged_runs, ", "));
  }
  return line;
}

absl::StatusOr<std::unique_ptr<Store>> OpenRocksStore(RocksStoreOptions options, RecoveryReport& report) {
  auto keeper = std::make_shared<RocksKeeper>(options);
  RR_RETURN_IF_ERROR(keeper->Open());
  RR_ASSIGN_OR_RETURN(std::vector<KeptRun> runs, keeper->Recover(report));
  RR_RETURN_IF_ERROR(keeper->Start());
  return NewKeptStore(std::move(options.memory), std::move(keeper), std::move(runs));
}

}  // namespace routing_replay::server
