#include "server/store/rocksdb/rocks_store.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>

#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/store/records/run_record.h"
#include "server/store/rocksdb/rocks_keys.h"
#include "server/store/rocksdb/rocks_run.h"
#include "server/store/rocksdb/rocks_status.h"

namespace routing_replay {
namespace {

class RocksKeeper final : public RunKeeper {
 public:
  explicit RocksKeeper(const RocksStoreOptions& options)
      : path_(options.path),
        durability_(options.durability),
        cache_(rocksdb::NewLRUCache(options.cache_bytes)),
        env_(options.env),
        time_(std::make_shared<const StoreTime>(*options.memory.clock)) {}
  ~RocksKeeper() override {
    families_.clear();
    default_.reset();
  }

  absl::Status Open();
  absl::StatusOr<std::vector<KeptRun>> Recover(RecoveryReport& report);

  std::string name() const override { return "rocksdb"; }
  DurabilityLevels durability() const override { return {durability_, Durability::kSynced}; }
  void Begin() override { *forgets_ = true; }
  void End() override { *forgets_ = false; }
  absl::StatusOr<RunPlace> Create(const RunInfo& run) override;
  absl::Status Drop(absl::string_view run) override;

 private:
  // Of a run without a record. Nothing is written to it afterwards, even if this fails.
  absl::Status DropFamily(const std::string& name);
  std::shared_ptr<RocksRun> MakeRun(std::shared_ptr<RocksFamily> family, const RunInfo& run) const {
    return std::make_shared<RocksRun>(std::move(family), run, time_, forgets_);
  }

  const std::string path_;
  const Durability durability_;
  const std::shared_ptr<rocksdb::Cache> cache_;
  rocksdb::Env* const env_;
  const std::shared_ptr<const StoreTime> time_;
  const std::shared_ptr<std::atomic<bool>> forgets_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<rocksdb::DB> db_;
  std::shared_ptr<RocksFamily> default_;
  // Of runs, by name; also of those dropped whose family is left.
  std::map<std::string, std::shared_ptr<RocksFamily>> families_;
};

absl::Status RocksKeeper::Open() {
  const rocksdb::Options options(RocksDatabaseOptions(cache_, env_), RocksRunOptions(cache_));
  std::vector<std::string> names;
  if (!rocksdb::DB::ListColumnFamilies(options, path_, &names).ok()) names = {rocksdb::kDefaultColumnFamilyName};
  std::vector<rocksdb::ColumnFamilyDescriptor> descriptors;
  for (const std::string& name : names) descriptors.emplace_back(name, RocksRunOptions(cache_));
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened = rocksdb::DB::Open(options, path_, descriptors, &handles, &db);
  if (absl::Status status = FromRocks(opened, absl::StrCat("rocksdb:", path_)); !status.ok()) return status;
  db_.reset(db);
  for (size_t i = 0; i < names.size(); ++i) {
    auto family = std::make_shared<RocksFamily>(db_, handles[i]);
    if (names[i] == rocksdb::kDefaultColumnFamilyName) {
      default_ = std::move(family);
    } else {
      families_[names[i]] = std::move(family);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KeptRun>> RocksKeeper::Recover(RecoveryReport& report) {
  std::vector<KeptRun> runs;
  std::map<std::string, std::shared_ptr<RocksFamily>> unknown = families_;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions(), default_->handle));
  for (it->Seek(rocks::RunKey("")); it->Valid() && it->key().starts_with(rocks::RunKey("")); it->Next()) {
    absl::StatusOr<RunInfo> info = DecodeRun({it->value().data(), it->value().size()});
    if (!info.ok()) return info.status();
    const auto family = families_.find(rocks::RunFamily(info->run));
    if (family == families_.end()) continue;  // It was being dropped.
    unknown.erase(family->first);
    const std::shared_ptr<RocksRun> run = MakeRun(family->second, *info);
    auto samples = RecoverSamples(*family->second, info->options.block_rows, *time_, *run, report);
    if (!samples.ok()) return samples.status();
    ++report.runs;
    runs.push_back({*std::move(info), {run, run}, *std::move(samples)});
  }
  if (absl::Status status = FromRocks(it->status(), "the database cannot be read"); !status.ok()) return status;
  // Runs that were being made, or dropped, when the process ended.
  for (const auto& [name, family] : unknown) {
    if (absl::Status status = DropFamily(name); !status.ok()) return status;
  }
  return runs;
}

absl::StatusOr<RunPlace> RocksKeeper::Create(const RunInfo& info) {
  const std::string name = rocks::RunFamily(info.run);
  rocksdb::ColumnFamilyHandle* handle = nullptr;
  absl::Status status = DropFamily(name);
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
  return RunPlace{run, run};
}

absl::Status RocksKeeper::Drop(absl::string_view run) {
  rocksdb::WriteBatch batch;
  batch.Delete(default_->handle, rocks::RunKey(run));
  const absl::Status status =
      FromRocks(db_->Write(RocksWriteOptions(Durability::kSynced), &batch), "the run cannot be dropped");
  if (!status.ok()) return status;
  // Without its record the run is gone, whatever becomes of its family: one that cannot be dropped now goes when the
  // run is made again, or at the next start.
  DropFamily(rocks::RunFamily(run)).IgnoreError();
  return absl::OkStatus();
}

absl::Status RocksKeeper::DropFamily(const std::string& name) {
  const auto family = families_.find(name);
  if (family == families_.end()) return absl::OkStatus();
  family->second->writes.Close();
  const absl::Status status =
      FromRocks(db_->DropColumnFamily(family->second->handle), "the run's rows cannot be dropped");
  if (status.ok()) families_.erase(family);
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> OpenRocksStore(RocksStoreOptions options, RecoveryReport& report) {
  auto keeper = std::make_shared<RocksKeeper>(options);
  if (absl::Status status = keeper->Open(); !status.ok()) return status;
  absl::StatusOr<std::vector<KeptRun>> runs = keeper->Recover(report);
  if (!runs.ok()) return runs.status();
  return NewKeptStore(std::move(options.memory), std::move(keeper), *std::move(runs));
}

}  // namespace routing_replay
