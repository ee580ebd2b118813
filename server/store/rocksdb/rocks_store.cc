#include "server/store/rocksdb/rocks_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/records/records.h"
#include "server/store/rocksdb/rocks_database.h"
#include "server/store/rocksdb/rocks_run.h"

namespace routing_replay::server {
namespace {

constexpr uint64_t kSmallLogs = 1 << 20;

class RocksKeeper final : public RunKeeper {
 public:
  explicit RocksKeeper(const RocksStoreOptions& options)
      : path_(options.path),
        durability_(options.durability),
        boot_id_(options.boot_id),
        cache_(rocksdb::NewLRUCache(options.cache_bytes)),
        env_(options.env != nullptr ? *options.env : *rocksdb::Env::Default()),
        clock_(*options.memory.clock),
        time_(clock_),
        budget_(*options.memory.budget) {}
  ~RocksKeeper() override {
    if (space_ != nullptr) space_->Stop();
    if (started_) Close().IgnoreError();  // Without the mark the next one takes the end for a crash, as it should.
    families_.clear();
    default_.reset();
  }

  absl::Status Open();
  absl::StatusOr<std::vector<KeptRun>> Recover(RecoveryReport& report);
  // After Recover, and before anything is acknowledged.
  absl::Status Start(const RecoveryReport& report);

  std::string name() const override { return "rocksdb"; }
  DurabilityLevels durability() const override { return {durability_, Durability::kSynced}; }
  absl::Status Health() const override { return health_->Get(); }
  void Begin() override { *forgets_ = true; }
  void End() override { *forgets_ = false; }
  absl::StatusOr<RunStorage> Create(const RunInfo& run) override;
  bool Damaged(absl::string_view run) const override { return damaged_.contains(run); }
  absl::Status Drop(absl::string_view run) override;

 private:
  int64_t LastServedMs() const;
  absl::Status Close();
  // What is in the log or in memory, of all runs, is in files as well.
  absl::Status Flush();
  void FlushSoon(const RocksFamily& family);
  // Not worth a file of each run. False where that is not known.
  bool LogsAreSmall() const;
  absl::StatusOr<KeptRun> RecoverRun(absl::string_view run, absl::string_view record, LastEnd end,
                                     RecoveryReport& report);
  // Of a run without a record. Nothing is written to it afterwards, even if this fails.
  absl::Status DropFamily(const std::string& name);
  std::shared_ptr<RocksRun> MakeRun(std::shared_ptr<RocksFamily> family, const RunInfo& run) {
    auto made = std::make_shared<RocksRun>(std::make_shared<RunUsage>(budget_), std::move(family), run, use_time_,
                                           forgets_, space_);
    space_->Join(made);
    return made;
  }

  const std::string path_;
  const Durability durability_;
  const std::string boot_id_;
  const std::shared_ptr<rocksdb::Cache> cache_;
  rocksdb::Env& env_;
  const Clock& clock_;
  const StoreTime time_;
  // When samples are used: it stands still while there is no server. From Recover on.
  std::shared_ptr<const StoreTime> use_time_;
  ByteBudget& budget_;
  const std::shared_ptr<RocksHealth> health_ = std::make_shared<RocksHealth>();
  const std::shared_ptr<std::atomic<bool>> forgets_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<RocksSpace> space_;  // From Open on.
  std::shared_ptr<rocksdb::DB> db_;
  std::shared_ptr<RocksFamily> default_;
  // Of runs, by name; also of those dropped whose family is left.
  std::map<std::string, std::shared_ptr<RocksFamily>> families_;
  std::set<std::string, std::less<>> damaged_;  // Runs that are left alone.
  bool started_ = false;
};

absl::Status RocksKeeper::Open() {
  rocksdb::Options options(RocksDatabaseOptions(cache_, &env_), RocksRunOptions(cache_));
  options.listeners.push_back(health_);
  const std::shared_ptr<const rocksdb::WriteBufferManager> buffers = options.write_buffer_manager;
  absl::StatusOr<OpenedDatabase> opened = OpenDatabase(path_, options);
  if (!opened.ok()) return opened.status();
  space_ = std::make_shared<RocksSpace>(path_, buffers);
  db_ = std::move(opened->db);
  default_ = std::move(opened->by_default);
  families_ = std::move(opened->families);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KeptRun>> RocksKeeper::Recover(RecoveryReport& report) {
  const absl::StatusOr<LastEnd> end = ReadLastEnd(*db_, default_->handle, boot_id_, LogDamageNoted(env_, path_));
  if (!end.ok()) return end.status();
  report.log_damaged = *end == LastEnd::kDamaged;
  use_time_ = std::make_shared<const StoreTime>(clock_, LastServedMs());
  std::vector<KeptRun> runs;
  std::map<std::string, std::shared_ptr<RocksFamily>> unknown = families_;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions(), default_->handle));
  for (it->Seek(rocks::RunKey("")); it->Valid() && it->key().starts_with(rocks::RunKey("")); it->Next()) {
    const std::string name(rocks::RunOf({it->key().data(), it->key().size()}));
    if (unknown.erase(rocks::RunFamily(name)) == 0) continue;  // It was being dropped.
    const RecoveryReport before = report;
    absl::StatusOr<KeptRun> run = RecoverRun(name, {it->value().data(), it->value().size()}, *end, report);
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
  }
  if (absl::Status status = FromRocks(it->status(), "the database cannot be read"); !status.ok()) return status;
  // Runs that were being made, or dropped, when the process ended.
  for (const auto& [name, family] : unknown) {
    if (absl::Status status = DropFamily(name); !status.ok()) return status;
  }
  return runs;
}

// There was a server when it began or ended, and when a sample was used; after the last of these times perhaps none.
// What cannot be read is told by who recovers its run.
int64_t RocksKeeper::LastServedMs() const {
  const std::string prefix(1, rocks::kUsePrefix);
  int64_t last = LastMarkMs(*db_, default_->handle);
  for (const auto& [name, family] : families_) {
    const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions(), family->handle));
    for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
      last = std::max(last, rocks::DecodeTime({it->value().data(), it->value().size()}));
    }
  }
  return last;
}

absl::StatusOr<KeptRun> RocksKeeper::RecoverRun(absl::string_view name, absl::string_view record, LastEnd end,
                                                RecoveryReport& report) {
  absl::StatusOr<RunInfo> info = DecodeRun(record);
  if (!info.ok()) return info.status();
  if (info->run != name) return DamagedRecord("a run has another's name");
  const std::shared_ptr<RocksFamily>& family = families_.at(rocks::RunFamily(name));
  const std::shared_ptr<RocksRun> run = MakeRun(family, *info);
  const bool doubtful = MayLack(end, *info->options.durability);
  report.doubtful_runs += doubtful ? 1 : 0;
  auto samples = RecoverSamples(*family, info->options.block_rows, doubtful, time_, *use_time_, *run, report);
  if (!samples.ok()) return samples.status();
  return KeptRun{*std::move(info), {run, run}, *std::move(samples)};
}

absl::Status RocksKeeper::Start(const RecoveryReport& report) {
  // New revisions are nowhere but in the log until then.
  if (report.log_damaged) {
    if (absl::Status status = Flush(); !status.ok()) return status;
  }
  if (absl::Status status = MarkOpen(*db_, default_->handle, boot_id_, use_time_->NowMs()); !status.ok()) return status;
  if (absl::Status status = ForgetLogDamage(env_, path_); !status.ok()) return status;
  started_ = true;
  return absl::OkStatus();
}

absl::Status RocksKeeper::Flush() {
  for (const auto& [name, family] : families_) {
    const rocksdb::Status flushed = db_->Flush(RocksFlushAtOnce(), family->handle);
    if (absl::Status status = FromRocks(flushed, "the run cannot be kept"); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RocksKeeper::Close() {
  absl::Status status = Flush();
  return status.ok() ? MarkClosed(*db_, default_->handle, use_time_->NowMs()) : status;
}

absl::StatusOr<RunStorage> RocksKeeper::Create(const RunInfo& info) {
  if (damaged_.contains(info.run)) {
    return MakeError(
        absl::StatusCode::kDataLoss,
        absl::StrCat("run ", info.run,
                     " is in the database and damaged; what is left of it is left alone until the run is dropped"),
        {.reason = Reason::kChecksum});
  }
  const std::string name = rocks::RunFamily(info.run);
  rocksdb::ColumnFamilyHandle* handle = nullptr;
  absl::Status status = space_->Promise(0).status();
  if (!status.ok()) return status;
  status = DropFamily(name);
  if (!status.ok()) return status;
  status = FromRocks(db_->CreateColumnFamily(RocksRunOptions(cache_), name, &handle), "the run cannot be kept");
  if (!status.ok()) return status;
  auto family = std::make_shared<RocksFamily>(db_, handle);
  rocksdb::WriteBatch batch;
  batch.Put(default_->handle, rocks::RunKey(info.run), EncodeRun(info));
  status = FromRocks(db_->Write(RocksWriteOptions(Durability::kSynced), &batch), "the run cannot be kept");
  families_[name] = family;
  if (!status.ok()) {
    DropFamily(name).IgnoreError();
    return status;
  }
  const std::shared_ptr<RocksRun> run = MakeRun(std::move(family), info);
  FlushSoon(*default_);  // Its record would hold the log of all rows that are written after it.
  return RunStorage{run, run};
}

absl::Status RocksKeeper::Drop(absl::string_view run) {
  rocksdb::WriteBatch batch;
  batch.Delete(default_->handle, rocks::RunKey(run));
  absl::Status status =
      FromRocks(db_->Write(RocksWriteOptions(Durability::kSynced), &batch), "the run cannot be dropped");
  if (!status.ok()) return status;
  damaged_.erase(std::string(run));
  // Without its record the run is gone, whatever becomes of its family: one that cannot be dropped now goes when the
  // run is made again, or at the next start.
  DropFamily(rocks::RunFamily(run)).IgnoreError();
  // Logs hold its rows until nothing else in them is wanted. Of many small runs that are dropped one after the other,
  // each would have all others write what they have.
  if (LogsAreSmall()) return absl::OkStatus();
  FlushSoon(*default_);
  for (const auto& [name, family] : families_) FlushSoon(*family);
  return absl::OkStatus();
}

void RocksKeeper::FlushSoon(const RocksFamily& family) {
  rocksdb::FlushOptions options = RocksFlushAtOnce();
  options.wait = false;
  db_->Flush(options, family.handle).PermitUncheckedError();  // A log stays longer.
}

bool RocksKeeper::LogsAreSmall() const {
  rocksdb::VectorLogPtr logs;
  if (!db_->GetSortedWalFiles(logs).ok()) return false;
  const auto add = [](uint64_t bytes, const auto& log) { return bytes + log->SizeFileBytes(); };
  return std::accumulate(logs.begin(), logs.end(), uint64_t{0}, add) < kSmallLogs;
}

absl::Status RocksKeeper::DropFamily(const std::string& name) {
  const auto family = families_.find(name);
  if (family == families_.end()) return absl::OkStatus();
  family->second->writes.Close();
  absl::Status status = FromRocks(db_->DropColumnFamily(family->second->handle), "the run's rows cannot be dropped");
  if (!status.ok()) return status;
  families_.erase(family);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenRocksStore(RocksStoreOptions options, RecoveryReport& report) {
  auto keeper = std::make_shared<RocksKeeper>(options);
  if (absl::Status status = keeper->Open(); !status.ok()) return status;
  absl::StatusOr<std::vector<KeptRun>> runs = keeper->Recover(report);
  if (!runs.ok()) return runs.status();
  if (absl::Status status = keeper->Start(report); !status.ok()) return status;
  return NewKeptStore(std::move(options.memory), std::move(keeper), *std::move(runs));
}

}  // namespace routing_replay::server
