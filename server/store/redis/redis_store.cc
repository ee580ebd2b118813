#include "server/store/redis/redis_store.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/append_check.h"
#include "server/store/page_limit.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_removal.h"
#include "server/store/redis/redis_runs.h"
#include "server/store/redis/redis_sample.h"
#include "server/store/redis/redis_watches.h"
#include "server/store/run_options.h"
#include "server/store/store_errors.h"

namespace routing_replay::server {
namespace {

constexpr Producer kProducers[] = {Producer::kRollout, Producer::kTrainer};
// Samples looked at in one go.
constexpr size_t kBatch = 256;

constexpr std::chrono::seconds kHealthTimeout{3};

RunState StateOf(const RedisRun& run, const RedisIndex::Sums& sums) {
  return {run.info, sums.samples, sums.sealed_samples, sums.committed_rows, sums.stored_bytes};
}

class RedisStore final : public Store {
 public:
  RedisStore(std::string name, std::shared_ptr<RedisCluster> cluster, const RedisStoreOptions& options)
      : name_(std::move(name)),
        follow_time_(options.follow_time),
        context_(std::move(cluster), options.prefix, *options.clock, options.known_samples, options.known_bytes,
                 options.lost_samples),
        runs_(Fill(context_, options), options.default_ttl),
        watches_(context_) {
    FollowTime();
  }

  std::string name() const override { return name_; }
  absl::StatusOr<RunInfo> OpenRun(absl::string_view run, const Geometry* geometry,
                                  const std::optional<RunOptions>& options) override {
    return runs_.Open(run, geometry, options);
  }
  absl::StatusOr<RunInfo> GetRun(absl::string_view run) override;
  absl::StatusOr<RunInfo> KnownRun(absl::string_view run) override;
  absl::StatusOr<RunState> StatRun(absl::string_view run) override;
  absl::StatusOr<RunPage> ListRuns(absl::string_view page_token, size_t limit) override;
  absl::StatusOr<int64_t> CountRuns() override { return runs_.Count(); }
  absl::StatusOr<ReleaseResult> DropRun(absl::string_view run) override { return runs_.Drop(run); }
  absl::StatusOr<AppendAck> Append(AppendCommand command) override;
  absl::StatusOr<SampleState> Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                   int64_t num_tokens, int64_t revision) override;
  absl::StatusOr<SampleState> Truncate(absl::string_view run, Producer producer, absl::string_view sample, int64_t rows,
                                       std::optional<int64_t> expected_revision) override;
  absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                          absl::Span<const RowRange> rows, const AdmitSnapshot& admit) override;
  absl::StatusOr<SampleState> Stat(absl::string_view run, Producer producer, const SampleRef& sample) override;
  absl::Status StatEach(absl::string_view run, Producer producer, absl::Span<const SampleRef> samples,
                        const TakeState& take) override;
  absl::StatusOr<ListPage> List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                int32_t page_size, absl::string_view page_token) override;
  absl::StatusOr<ReleaseResult> Release(absl::string_view run, std::optional<Producer> producer,
                                        absl::Span<const SampleRef> samples) override;
  absl::StatusOr<ReleaseResult> ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                              GroupRange groups) override;
  absl::StatusOr<std::unique_ptr<Watch>> WatchSample(absl::string_view run, Producer producer, const SampleRef& sample,
                                                     std::function<void()> changed) override;
  int64_t Sweep(int64_t limit) override;
  void Abandon() override { context_.cluster->Abandon(); }
  absl::Status Health() override;
  Totals GetTotals() override;

 private:
  using RunPtr = std::shared_ptr<RedisRun>;
  // Called with what was found of some samples of a run; false: enough.
  using Visitor = std::function<bool(const SampleName&, const RedisFound&)>;

  static RedisContext& Fill(RedisContext& context, const RedisStoreOptions& options);

  // Calls `call` with the run; once more if the run that this server knew turns out to be gone.
  template <typename Call>
  auto WithRun(absl::string_view run, const Call& call) -> decltype(call(RunPtr()));
  SampleName NameOf(Producer producer, const SampleRef& ref) const;
  RedisSample SampleOf(RunPtr run, Producer producer, const SampleRef& ref) {
    return RedisSample(context_, std::move(run), NameOf(producer, ref));
  }
  absl::StatusOr<AppendAck> AppendTo(const RunPtr& run, AppendCommand& command, RedisSample& sample);
  struct Looks {
    RunPtr run;
    std::vector<RedisFound> found;  // One for each name.
    std::set<std::string> lost;     // Of those that were not found: what Redis had, and has no more.
  };
  absl::StatusOr<Looks> LookAtAll(const RunPtr& run, const std::vector<SampleName>& names);
  // DATA_LOSS if the sample, which was found after its entry was read, is gone, or is less than the entry says; its
  // revision is then raised.
  absl::Status LookForLoss(const RunPtr& run, const SampleName& name, const RedisEntry& entry, const RedisFound& found);
  // All samples with ids after `id`, by id, that may be in `groups`. Losses are looked for. Of entries without a sample
  // those of lost ones are given their sample again, without rows, and the others are taken out.
  absl::Status Visit(const RunPtr& run, Producer producer, const std::optional<GroupRange>& groups, std::string id,
                     const Visitor& visitor);
  // Ends those of the samples that `asked` is true of.
  absl::Status ReleaseNames(const RunPtr& run, const std::vector<SampleName>& names, const RedisRemoval::Filter& asked,
                            ReleaseResult& result);
  absl::StatusOr<int64_t> SweepRun(const RunPtr& run, int64_t limit);
  // Whether this server may judge what is idle.
  bool FollowTime();

  const std::string name_;
  const bool follow_time_;
  RedisContext context_;
  RedisRuns runs_;
  RedisWatches watches_;
  Mutex totals_mutex_;
  Totals totals_ ABSL_GUARDED_BY(totals_mutex_);
};

RedisContext& RedisStore::Fill(RedisContext& context, const RedisStoreOptions& options) {
  context.timeout = options.timeout;
  context.reader_grace = options.reader_grace;
  context.handle_of = options.handle_of;
  context.server = absl::StrCat(absl::Hex(context.content_ids.Next(), absl::kZeroPad16));
  return context;
}

template <typename Call>
auto RedisStore::WithRun(absl::string_view run, const Call& call) -> decltype(call(RunPtr())) {
  for (bool again = true;; again = false) {
    const absl::StatusOr<RunPtr> found = runs_.Find(run);
    if (!found.ok()) return found.status();
    auto result = call(*found);
    if (result.ok() || !again || !(*found)->ended) return result;
  }
}

SampleName RedisStore::NameOf(Producer producer, const SampleRef& ref) const {
  return {ref.sample, ref.sample.empty() ? ref.handle : context_.handle_of(ref.sample), producer};
}

absl::StatusOr<RunInfo> RedisStore::GetRun(absl::string_view run) {
  const absl::StatusOr<RunPtr> found = runs_.Load(run);
  if (!found.ok()) return found.status();
  return (*found)->info;
}

absl::StatusOr<RunInfo> RedisStore::KnownRun(absl::string_view run) {
  const absl::StatusOr<RunPtr> found = runs_.Find(run);
  if (!found.ok()) return found.status();
  return (*found)->info;
}

absl::StatusOr<RunState> RedisStore::StatRun(absl::string_view run) {
  const absl::StatusOr<RunPtr> found = runs_.Load(run);
  if (!found.ok()) return found.status();
  const auto sums = SumsOf(context_, {&*found, 1});
  if (!sums.ok()) return sums.status();
  return StateOf(**found, sums->front());
}

absl::StatusOr<RunPage> RedisStore::ListRuns(absl::string_view page_token, size_t limit) {
  const auto loaded = runs_.LoadPage(page_token, limit);
  if (!loaded.ok()) return loaded.status();
  const auto sums = SumsOf(context_, loaded->runs);
  if (!sums.ok()) return sums.status();
  RunPage page{.next_token = loaded->last};
  for (size_t i = 0; i < loaded->runs.size(); ++i) page.runs.push_back(StateOf(*loaded->runs[i], (*sums)[i]));
  return page;
}

// A part of the samples is served as long as one master is there.
absl::Status RedisStore::Health() {
  const Clock::Time deadline = Clock::Real().Now() + kHealthTimeout;
  for (const RedisAddress& master : context_.cluster->Masters()) {
    if (context_.cluster->ExecuteAt(master, RedisCommand({"PING"}), deadline).reply.ok()) return absl::OkStatus();
  }
  // Looks for others that may have taken their place.
  const std::string key = context_.keys.Runs();
  const RedisResult found =
      context_.cluster->ExecuteOne({.command = RedisCommand({"EXISTS", key}), .key = key}, deadline);
  return found.reply.ok() ? absl::OkStatus() : absl::UnavailableError("no Redis server answers");
}

Store::Totals RedisStore::GetTotals() {
  const absl::StatusOr<std::vector<RunState>> runs = Store::ListRuns();
  MutexLock lock(totals_mutex_);
  if (!runs.ok()) return totals_;
  totals_ = Totals();
  for (const RunState& run : *runs) {
    ++totals_.runs;
    totals_.samples += run.samples;
    totals_.stored_bytes += run.stored_bytes;
  }
  return totals_;
}

bool RedisStore::FollowTime() {
  if (!follow_time_) return true;
  const absl::Status status = context_.time.Follow(*context_.cluster, context_.Deadline());
  if (!status.ok()) context_.trouble.Tell("time", status);
  return status.ok();
}

absl::StatusOr<AppendAck> RedisStore::Append(AppendCommand command) {
  std::optional<RedisSample> sample;
  const SampleName name = NameOf(command.header.producer, {.sample = command.header.sample});
  absl::StatusOr<AppendAck> ack = WithRun(
      command.run, [&](const RunPtr& run) { return AppendTo(run, command, sample.emplace(context_, run, name)); });
  if (!ack.ok() || command.header.restart_nonce == 0) return ack;
  // Not within WithRun: the blocks are stored, and there are none to be stored once more in a later run of this name.
  if (absl::Status kept = sample->KeepRestart(ack->revision); !kept.ok()) return kept;
  return ack;
}

absl::StatusOr<AppendAck> RedisStore::AppendTo(const RunPtr& run, AppendCommand& command, RedisSample& sample) {
  const AppendHeader& header = command.header;
  if (absl::Status status = CheckAppend(header, command.blocks); !status.ok()) return status;
  if (absl::Status status = CheckBlocks(run->info, command); !status.ok()) {
    // It may be a run of the past that this server knows.
    const absl::StatusOr<RunPtr> now = runs_.Load(command.run);
    if (now.ok() && *now == run) return status;
    run->ended = true;
    return now.ok() ? NoRunError(command.run) : now.status();
  }
  std::optional<RedisSample> parent;
  if (header.prefix) {
    parent.emplace(context_, run, NameOf(header.producer, {.sample = header.prefix->sample}));
  }
  return sample.Append(command, parent ? &*parent : nullptr);
}

absl::StatusOr<SampleState> RedisStore::Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                             int64_t num_tokens, int64_t revision) {
  if (absl::Status status = CheckId(sample, "sample"); !status.ok()) return status;
  return WithRun(run, [&](const RunPtr& found) {
    return SampleOf(found, producer, {.sample = std::string(sample)}).Seal(num_tokens, revision);
  });
}

absl::StatusOr<SampleState> RedisStore::Truncate(absl::string_view run, Producer producer, absl::string_view sample,
                                                 int64_t rows, std::optional<int64_t> expected_revision) {
  if (absl::Status status = CheckId(sample, "sample"); !status.ok()) return status;
  return WithRun(run, [&](const RunPtr& found) {
    return SampleOf(found, producer, {.sample = std::string(sample)}).Truncate(rows, expected_revision);
  });
}

absl::StatusOr<SampleSnapshot> RedisStore::Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                                    absl::Span<const RowRange> rows, const AdmitSnapshot& admit) {
  return WithRun(run, [&](const RunPtr& found) { return SampleOf(found, producer, sample).Snapshot(rows, admit); });
}

absl::StatusOr<SampleState> RedisStore::Stat(absl::string_view run, Producer producer, const SampleRef& sample) {
  return WithRun(run, [&](const RunPtr& found) { return SampleOf(found, producer, sample).Stat(); });
}

absl::StatusOr<RedisStore::Looks> RedisStore::LookAtAll(const RunPtr& run, const std::vector<SampleName>& names) {
  auto found = LookAt(context_, *run, names);
  if (!found.ok()) return found.status();
  std::vector<SampleName> missing;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!(*found)[i].exists() && !names[i].sample.empty()) missing.push_back(names[i]);
  }
  const auto left = run->index.LeftOf(missing);
  if (!left.ok()) return left.status();
  Looks looks{.run = run, .found = *std::move(found)};
  for (size_t i = 0; i < missing.size(); ++i) {
    if ((*left)[i]) looks.lost.insert(missing[i].sample);
  }
  return looks;
}

absl::Status RedisStore::StatEach(absl::string_view run, Producer producer, absl::Span<const SampleRef> samples,
                                  const TakeState& take) {
  for (size_t begin = 0; begin < samples.size(); begin += kBatch) {
    const absl::Span<const SampleRef> batch = samples.subspan(begin, kBatch);
    std::vector<SampleName> names;
    for (const SampleRef& sample : batch) names.push_back(NameOf(producer, sample));
    const auto looks = WithRun(run, [&](const RunPtr& found) { return LookAtAll(found, names); });
    const auto state_of = [&](size_t i) -> absl::StatusOr<SampleState> {
      if (!looks.ok()) return looks.status();
      const RedisFound& found = looks->found[i];
      if (auto state = RedisSample(context_, looks->run, names[i]).StateIn(found)) return *std::move(state);
      if (found.exists() || looks->lost.contains(names[i].sample)) return Stat(run, producer, batch[i]);
      return NoSampleError(names[i].sample.empty() ? absl::StrCat("handle ", names[i].handle) : names[i].sample);
    };
    for (size_t i = 0; i < batch.size(); ++i) {
      if (absl::Status taken = take(batch[i], state_of(i)); !taken.ok()) return taken;
    }
  }
  return absl::OkStatus();
}

absl::Status RedisStore::LookForLoss(const RunPtr& run, const SampleName& name, const RedisEntry& entry,
                                     const RedisFound& found) {
  if (!found.exists()) return RedisSample(context_, run, name).Stat().status();
  const bool behind = found.content.ok() && found.stamp.sample == name.sample && found.stamp.version < entry.version;
  return entry.group && behind ? RedisSample(context_, run, name).CompareWith(entry) : absl::OkStatus();
}

absl::Status RedisStore::Visit(const RunPtr& run, Producer producer, const std::optional<GroupRange>& groups,
                               std::string id, const Visitor& visitor) {
  for (;;) {
    const absl::StatusOr<RedisIndex::Page> page = run->index.After(producer, id, kBatch);
    if (!page.ok()) return page.status();
    std::vector<SampleName> names;
    std::vector<RedisEntry> entries;
    for (const RedisEntry& entry : page->entries) {
      if (groups && entry.group && !groups->contains(*entry.group)) continue;
      names.push_back(NameOf(producer, {.sample = entry.sample}));
      entries.push_back(entry);
    }
    // With no name it tells whether the run lives.
    absl::StatusOr<std::vector<RedisFound>> found = LookAt(context_, *run, names);
    bool lost = false;
    for (size_t i = 0; found.ok() && i < names.size(); ++i) {
      lost |= absl::IsDataLoss(LookForLoss(run, names[i], entries[i], (*found)[i]));
    }
    if (lost) found = LookAt(context_, *run, names);
    if (!found.ok()) return found.status();
    std::vector<RedisRequest> drops;
    for (size_t i = 0; i < names.size(); ++i) {
      const RedisFound& one = (*found)[i];
      if (!one.exists() || one.stamp.sample != names[i].sample) {
        drops.push_back(run->index.Drop(names[i], entries[i].version));
      } else if (!groups || !one.content.ok() || groups->contains((*one.content)->group)) {
        if (!visitor(names[i], one)) return absl::OkStatus();
      }
    }
    if (!drops.empty()) context_.cluster->Execute(drops, context_.Deadline());
    if (!page->more) return absl::OkStatus();
    id = page->entries.back().sample;
  }
}

absl::StatusOr<ListPage> RedisStore::List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                          int32_t page_size, absl::string_view page_token) {
  const absl::StatusOr<size_t> limit = PageLimit(page_size);
  if (!limit.ok()) return limit.status();
  return WithRun(run, [&](const RunPtr& found) -> absl::StatusOr<ListPage> {
    PageBuilder page(*limit);
    const absl::Status status =
        Visit(found, producer, groups, std::string(page_token), [&](const SampleName& name, const RedisFound& one) {
          return !one.content.ok() || page.Add(StateOf(context_, name, one));
        });
    if (!status.ok()) return status;
    return page.Take();
  });
}

absl::Status RedisStore::ReleaseNames(const RunPtr& run, const std::vector<SampleName>& names,
                                      const RedisRemoval::Filter& asked, ReleaseResult& result) {
  RedisRemoval removal(context_, *run, asked, /*unused=*/false);
  absl::Status status = removal.Remove(names);
  result.samples += removal.result().samples;
  result.bytes += removal.result().bytes;
  return status;
}

absl::StatusOr<ReleaseResult> RedisStore::Release(absl::string_view run, std::optional<Producer> producer,
                                                  absl::Span<const SampleRef> samples) {
  std::vector<SampleName> names;
  std::set<std::pair<int64_t, std::string>> seen;
  for (const SampleRef& ref : samples) {
    for (const Producer p : kProducers) {
      SampleName name = NameOf(p, ref);
      if (producer && *producer != p) continue;
      if (seen.emplace(name.handle, absl::StrCat(static_cast<int>(p), ref.sample)).second)
        names.push_back(std::move(name));
    }
  }
  return WithRun(run, [&](const RunPtr& found) -> absl::StatusOr<ReleaseResult> {
    ReleaseResult result;
    const auto any = [](const RedisFound&) { return true; };
    if (absl::Status status = ReleaseNames(found, names, any, result); !status.ok()) return status;
    return result;
  });
}

absl::StatusOr<ReleaseResult> RedisStore::ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                                        GroupRange groups) {
  return WithRun(run, [&](const RunPtr& found) -> absl::StatusOr<ReleaseResult> {
    const auto inside = [&](const RedisFound& one) {
      return one.content.ok() && groups.contains((*one.content)->group);
    };
    ReleaseResult result;
    for (const Producer p : kProducers) {
      if (producer && *producer != p) continue;
      std::vector<SampleName> names;
      absl::Status status = Visit(found, p, groups, "", [&](const SampleName& name, const RedisFound& one) {
        if (inside(one)) names.push_back(name);
        return true;
      });
      if (status.ok()) status = ReleaseNames(found, names, inside, result);
      if (!status.ok()) return status;
    }
    return result;
  });
}

absl::StatusOr<std::unique_ptr<Store::Watch>> RedisStore::WatchSample(absl::string_view run, Producer producer,
                                                                      const SampleRef& sample,
                                                                      std::function<void()> changed) {
  const absl::StatusOr<RunPtr> found = runs_.Load(run);
  if (!found.ok()) return found.status();
  return watches_.Add(*found, NameOf(producer, sample), std::move(changed));
}

// What cannot be removed now is idle the next time, too.
int64_t RedisStore::Sweep(int64_t limit) {
  int64_t removed = 0;
  context_.trouble.TellLosses();
  const bool time_is_right = FollowTime();
  const auto all = runs_.LoadPage("", SIZE_MAX);
  if (!all.ok()) return 0;
  for (const RunPtr& run : all->runs) {
    if (time_is_right && removed < limit) removed += SweepRun(run, limit - removed).value_or(0);
  }
  if (time_is_right) runs_.ClearDropped();
  return removed;
}

absl::StatusOr<int64_t> RedisStore::SweepRun(const RunPtr& run, int64_t limit) {
  const absl::StatusOr<std::vector<RedisIndex::DueEntry>> due = run->index.Due(limit);
  if (!due.ok()) return due.status();
  const int64_t idle_ms = (run->lives.ttl + run->lives.grain()).count();
  const auto idle = [&](const RedisFound& one) { return context_.time.NowMs() - one.stamp.last_used_ms >= idle_ms; };
  RedisRemoval removal(context_, *run, idle, /*unused=*/true);
  for (size_t i = 0; i < due->size() && removal.result().samples < limit; i += kBatch) {
    const auto batch = absl::MakeConstSpan(*due).subspan(i, kBatch);
    std::vector<SampleName> names;
    for (const RedisIndex::DueEntry& entry : batch) names.push_back(entry.name);
    const absl::StatusOr<std::vector<RedisFound>> found = LookAt(context_, *run, names);
    if (!found.ok()) return found.status();
    std::vector<SampleName> ends;
    std::vector<RedisRequest> notes;
    for (size_t j = 0; j < names.size(); ++j) {
      const RedisFound& one = (*found)[j];
      if (!one.exists()) {
        notes.push_back(run->index.Drop(names[j], batch[j].version));
      } else if (idle(one)) {
        ends.push_back(names[j]);
      } else if (one.content.ok()) {
        notes.push_back(run->index.Put(names[j], one.manifest()));
      }
    }
    context_.cluster->Execute(notes, context_.Deadline());
    const auto room = static_cast<size_t>(limit - removal.result().samples);
    if (ends.size() > room) ends.resize(room);
    if (absl::Status status = removal.Remove(std::move(ends)); !status.ok()) break;
  }
  return removal.result().samples;
}

}  // namespace

std::unique_ptr<Store> NewRedisStore(std::string name, std::shared_ptr<RedisCluster> cluster,
                                     const RedisStoreOptions& options) {
  return std::make_unique<RedisStore>(std::move(name), std::move(cluster), options);
}

}  // namespace routing_replay::server
