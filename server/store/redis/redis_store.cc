#include "server/store/redis/redis_store.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/records/records.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_sample.h"
#include "server/store/redis/redis_watches.h"
#include "server/store/store_rules.h"

namespace routing_replay::server {
namespace {

using RunPtr = std::shared_ptr<RedisRun>;

constexpr size_t kIncarnationBytes = 16;
constexpr std::chrono::seconds kHealthTimeout{3};
constexpr int kHealthKeys = 32;

class RedisStore final : public Store {
 public:
  RedisStore(std::shared_ptr<RedisCluster> cluster, const RedisStoreOptions& options)
      : context_(std::make_shared<RedisContext>(std::move(cluster), options)), watches_(*context_) {
    context_->changed = [this](RedisRun& run, const SampleName& sample, const std::string& key,
                               const std::string& version) { watches_.Changed(run, sample, key, version); };
  }

  // Blocks of cached manifests hold the context, which holds the cache: this breaks the cycle.
  ~RedisStore() override { context_->cache.Clear(); }

  std::string name() const override { return "redis"; }
  absl::StatusOr<RunInfo> OpenRun(absl::string_view run, const Geometry* geometry,
                                  const std::optional<RunOptions>& options) override;
  absl::StatusOr<RunInfo> GetRun(absl::string_view run) override {
    const absl::StatusOr<RunPtr> found = LoadRun(run);
    return found.ok() ? absl::StatusOr<RunInfo>((*found)->info) : found.status();
  }
  absl::StatusOr<RunInfo> KnownRun(absl::string_view run) override {
    const absl::StatusOr<RunPtr> found = FindRun(run);
    return found.ok() ? absl::StatusOr<RunInfo>((*found)->info) : found.status();
  }
  absl::StatusOr<RunState> StatRun(absl::string_view run) override {
    RR_ASSIGN_OR_RETURN(const RunPtr found, LoadRun(run));
    absl::StatusOr<std::vector<RunState>> states = StatesOf({&found, 1});
    return states.ok() ? absl::StatusOr<RunState>(std::move(states->front())) : states.status();
  }
  absl::StatusOr<RunPage> ListRuns(absl::string_view page_token, size_t limit) override {
    RunPage page;
    RR_ASSIGN_OR_RETURN(const std::vector<RunPtr> runs, LoadRuns(page_token, limit, page.next_token));
    RR_ASSIGN_OR_RETURN(page.runs, StatesOf(runs));
    return page;
  }
  absl::StatusOr<int64_t> CountRuns() override {
    RR_ASSIGN_OR_RETURN(const RedisReply counted, context_->Ask(RedisCommand({"SCARD", context_->RunsKey()})));
    return counted.integer;
  }
  absl::StatusOr<ReleaseResult> DropRun(absl::string_view run) override;

  absl::StatusOr<AppendAck> Append(AppendCommand command) override {
    return Change(command.run, NameOf(command.header.producer, {.sample = command.header.sample}),
                  [&](const RunPtr& run, RedisSample& sample) { return AppendTo(run, command, sample); });
  }
  absl::StatusOr<SampleState> Seal(absl::string_view run, Producer producer, absl::string_view sample,
                                   int64_t num_tokens, int64_t revision) override {
    RR_RETURN_IF_ERROR(CheckId(sample, "sample"));
    return Change(run, NameOf(producer, {.sample = std::string(sample)}),
                  [&](const RunPtr&, RedisSample& one) { return one.Seal(num_tokens, revision); });
  }
  absl::StatusOr<SampleState> Truncate(absl::string_view run, Producer producer, absl::string_view sample, int64_t rows,
                                       std::optional<int64_t> expected_revision) override {
    RR_RETURN_IF_ERROR(CheckId(sample, "sample"));
    return Change(run, NameOf(producer, {.sample = std::string(sample)}),
                  [&](const RunPtr&, RedisSample& one) { return one.Truncate(rows, expected_revision); });
  }
  absl::StatusOr<SampleSnapshot> Snapshot(absl::string_view run, Producer producer, const SampleRef& sample,
                                          absl::Span<const RowRange> rows, const AdmitSnapshot& admit) override {
    return WithRun(run, [&](const RunPtr& found) {
      return RedisSample(context_, found, NameOf(producer, sample)).Snapshot(rows, admit);
    });
  }
  absl::StatusOr<SampleState> Stat(absl::string_view run, Producer producer, const SampleRef& sample) override {
    return WithRun(run,
                   [&](const RunPtr& found) { return RedisSample(context_, found, NameOf(producer, sample)).Stat(); });
  }
  absl::Status StatEach(absl::string_view run, Producer producer, absl::Span<const SampleRef> samples,
                        const TakeState& take) override;
  absl::StatusOr<ListPage> List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                size_t limit, absl::string_view page_token) override;
  absl::StatusOr<ReleaseResult> Release(absl::string_view run, std::optional<Producer> producer,
                                        absl::Span<const SampleRef> samples) override;
  absl::StatusOr<ReleaseResult> ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                              GroupRange groups) override;
  absl::StatusOr<std::unique_ptr<Watch>> WatchSample(absl::string_view run, Producer producer, const SampleRef& sample,
                                                     std::function<void()> changed) override {
    RR_ASSIGN_OR_RETURN(const RunPtr found, LoadRun(run));
    const SampleName name = NameOf(producer, sample);
    return watches_.Add(found, name, SampleKeys(context_, *found, name).key, std::move(changed));
  }
  int64_t Sweep(int64_t limit) override;
  absl::Status Health() override;
  Totals GetTotals() override;

 private:
  struct Names {
    std::vector<SampleName> all;  // By id, ascending.
    bool more = false;            // There are more after the last one (then `all` is not empty).
  };

  SampleName NameOf(Producer producer, const SampleRef& ref) const {
    return {ref.sample, ref.sample.empty() ? ref.handle : context_->options.handle_of(ref.sample), producer};
  }

  // The run as Redis has it now. NOT_FOUND (kNoRun).
  absl::StatusOr<RunPtr> LoadRun(absl::string_view run) {
    RR_ASSIGN_OR_RETURN(const RedisReply got, context_->Ask(RedisCommand({"GET", context_->RunKey(run)})));
    if (got.is_nil()) return NoRunError(run);
    return TakeRun(got.text);
  }
  // The run as this server knew it last; if it knows none, as Redis has it now. For callers whose next request to Redis
  // fails if the run is gone.
  absl::StatusOr<RunPtr> FindRun(absl::string_view run) {
    {
      MutexLock lock(mutex_);
      const auto found = runs_.find(std::string(run));
      if (found != runs_.end() && !found->second->ended) return found->second;
    }
    return LoadRun(run);
  }
  // Returns the run that a value in Redis (incarnation and RunRecord) describes. If this server already knows that
  // incarnation, the result is the object that it has.
  absl::StatusOr<RunPtr> TakeRun(const std::string& value);
  // The runs of the first `limit` names after `after`, by name, without those whose records cannot be read. Sets `last`
  // to the last of these names if there are more.
  absl::StatusOr<std::vector<RunPtr>> LoadRuns(absl::string_view after, size_t limit, std::string& last);
  absl::StatusOr<std::vector<RunState>> StatesOf(absl::Span<const RunPtr> runs);
  // Calls `call` with the run; calls it once more if the run that this server knew turns out to be gone.
  template <typename Call>
  auto WithRun(absl::string_view run, const Call& call) -> decltype(call(RunPtr())) {
    for (bool again = true;; again = false) {
      RR_ASSIGN_OR_RETURN(const RunPtr found, FindRun(run));
      auto result = call(found);
      if (result.ok() || !again || !found->ended) return result;
    }
  }
  absl::StatusOr<AppendAck> AppendTo(const RunPtr& run, const AppendCommand& command, RedisSample& sample);
  // Calls `change` with the run and the sample. If it succeeds in a synced run, waits until a replica has the result.
  template <typename Call>
  auto Change(absl::string_view run, const SampleName& name, const Call& change)
      -> decltype(change(RunPtr(), std::declval<RedisSample&>())) {
    return WithRun(run, [&](const RunPtr& found) {
      RedisSample sample(context_, found, name);
      auto result = change(found, sample);
      if (!result.ok()) return result;
      if (absl::Status synced = sample.AwaitSynced(); !synced.ok()) result = synced;
      return result;
    });
  }

  // About `limit` samples after `after`; with `groups`, all after `after` of these and perhaps of neighbouring groups.
  absl::StatusOr<Names> NamesOf(const RedisRun& run, Producer producer, const std::optional<GroupRange>& groups,
                                absl::string_view after, size_t limit);
  absl::StatusOr<ListPage> ListOf(RedisRun& run, Producer producer, const std::optional<GroupRange>& groups,
                                  size_t limit, absl::string_view page_token);
  // Removes samples that have not been used for longer than the run's TTL, and adds their number to `removed`. Stops
  // when `removed` reaches `limit`.
  absl::Status SweepRun(const RunPtr& run, int64_t limit, int64_t& removed);
  // Removes every sample of a run, and adds their number and bytes to `result`.
  absl::Status RemoveAll(RedisRun& run, ReleaseResult& result);

  const std::shared_ptr<RedisContext> context_;
  RedisWatches watches_;
  Mutex mutex_;
  std::map<std::string, RunPtr> runs_ ABSL_GUARDED_BY(mutex_);  // By name; may be stale and may contain dropped runs.
  Totals totals_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<RunPtr> RedisStore::TakeRun(const std::string& value) {
  if (value.size() <= kIncarnationBytes)
    return absl::DataLossError("the record of a run in Redis is damaged: too short");
  const std::string incarnation = value.substr(0, kIncarnationBytes);
  absl::StatusOr<RunInfo> info = DecodeRun(absl::string_view(value).substr(kIncarnationBytes));
  if (!info.ok()) return absl::DataLossError(absl::StrCat("a run's record in Redis: ", info.status().message()));
  MutexLock lock(mutex_);
  RunPtr& run = runs_[info->run];
  if (run == nullptr || run->incarnation != incarnation) {
    run.reset(new RedisRun{.info = *std::move(info), .incarnation = incarnation, .prefix = context_->options.prefix});
  }
  run->ended = false;
  return run;
}

absl::StatusOr<std::vector<RunPtr>> RedisStore::LoadRuns(absl::string_view after, size_t limit, std::string& last) {
  RR_ASSIGN_OR_RETURN(const RedisReply listed, context_->Ask(RedisCommand({"SMEMBERS", context_->RunsKey()})));
  std::vector<std::string> names;
  for (const RedisReply& name : listed.elements) {
    if (name.text > after) names.push_back(name.text);
  }
  std::sort(names.begin(), names.end());
  if (limit < names.size()) {
    last = names[limit - 1];
    names.resize(limit);
  }
  std::vector<RedisRequest> requests;
  for (const std::string& name : names) {
    requests.push_back(RedisContext::Of(RedisCommand({"GET", context_->RunKey(name)})));
  }
  std::vector<RunPtr> runs;
  for (const RedisResult& got : context_->Execute(requests)) {
    if (got.reply.ok() && got.reply->is_nil()) continue;  // The run is being created or dropped.
    absl::StatusOr<RunPtr> run = got.reply.ok() ? TakeRun(got.reply->text) : got.reply.status();
    if (run.ok()) {
      runs.push_back(*std::move(run));
    } else if (absl::IsDataLoss(run.status())) {
      context_->Warn("a run's record", run.status());
    } else {
      return run.status();
    }
  }
  return runs;
}

absl::StatusOr<std::vector<RunState>> RedisStore::StatesOf(absl::Span<const RunPtr> runs) {
  std::vector<RedisRequest> requests;
  for (const RunPtr& run : runs) {
    for (int part = 0; part < RedisRun::kParts; ++part) {
      const std::string key = absl::StrCat(run->PartKeys(part), "n");
      requests.push_back(RedisContext::Of(RedisCommand({"HMGET", key, "samples", "sealed", "rows", "bytes"})));
    }
  }
  const std::vector<RedisResult> results = context_->Execute(requests);
  std::vector<RunState> states;
  for (size_t i = 0; i < results.size(); ++i) {
    const absl::StatusOr<RedisReply>& reply = results[i].reply;
    if (!reply.ok()) return reply.status();
    if (i % RedisRun::kParts == 0) states.push_back({.info = runs[i / RedisRun::kParts]->info});
    RunState& state = states.back();
    int64_t* const sums[] = {&state.samples, &state.sealed_samples, &state.committed_rows, &state.stored_bytes};
    for (size_t field = 0; field < std::size(sums) && field < reply->elements.size(); ++field) {
      int64_t number = 0;
      if (absl::SimpleAtoi(reply->elements[field].text, &number)) *sums[field] += number;
    }
  }
  return states;
}

absl::StatusOr<RunInfo> RedisStore::OpenRun(absl::string_view run, const Geometry* geometry,
                                            const std::optional<RunOptions>& options) {
  RR_RETURN_IF_ERROR(CheckId(run, "run"));
  if (options) {
    RR_RETURN_IF_ERROR(CheckRunOptions(*options));
  }
  absl::StatusOr<RunPtr> found = LoadRun(run);
  bool created = false;
  if (absl::IsNotFound(found.status()) && geometry != nullptr) {
    RunInfo info{.run = std::string(run), .geometry = std::make_shared<const Geometry>(*geometry)};
    RR_ASSIGN_OR_RETURN(
        info.options,
        OptionsInForce(options, {.ttl = context_->options.default_ttl, .codec = geometry->default_codec()},
                       kRedisDurability));
    const std::string value = context_->NewToken() + EncodeRun(info);
    const absl::StatusOr<RedisReply> before =
        context_->Ask(RedisCommand({"SET", context_->RunKey(run), value, "NX", "GET"}));
    if (!before.ok()) return before.status();
    created = before->is_nil() || before->text == value;
    found = TakeRun(created ? value : before->text);
  }
  if (!found.ok()) return found.status();
  RR_RETURN_IF_ERROR(CheckJoin((*found)->info, geometry, options));
  // Adds the name to the list at each opening: a drop at the same time may have taken it out.
  RR_ASSIGN_OR_RETURN(const RedisReply listed, context_->Ask(RedisCommand({"SADD", context_->RunsKey(), run})));
  RunInfo info = (*found)->info;
  info.created = created;
  return info;
}

// Removes the samples first: if that fails, the run is still there and can be dropped again.
absl::StatusOr<ReleaseResult> RedisStore::DropRun(absl::string_view name) {
  constexpr absl::string_view drop =
      "if redis.call('GETRANGE', KEYS[1], 0, 15) ~= ARGV[1] then return 0 end return redis.call('UNLINK', KEYS[1])";
  RR_ASSIGN_OR_RETURN(const RunPtr run, LoadRun(name));
  ReleaseResult result;
  RR_RETURN_IF_ERROR(RemoveAll(*run, result));
  RedisRequest request = RedisContext::Of(drop, std::vector<std::string>{context_->RunKey(name)});
  request.command.Add(run->incarnation);
  RR_ASSIGN_OR_RETURN(const RedisReply dropped, context_->Ask(std::move(request)));
  run->ended = true;
  if (dropped.integer != 1) return NoRunError(name);
  context_->Ask(RedisCommand({"SREM", context_->RunsKey(), name})).IgnoreError();
  run->watches->NotifyAll();
  // Removes what other servers appended before the drop, and the sums of each part (key "n").
  RedisRun rest{.info = run->info, .incarnation = run->incarnation, .prefix = run->prefix, .clears = true};
  RemoveAll(rest, result).IgnoreError();
  std::vector<RedisRequest> sums;
  for (int part = 0; part < RedisRun::kParts; ++part) {
    sums.push_back(RedisContext::Of(RedisCommand({"UNLINK", absl::StrCat(rest.PartKeys(part), "n")})));
  }
  context_->Execute(sums);
  return result;
}

absl::Status RedisStore::RemoveAll(RedisRun& run, ReleaseResult& result) {
  for (const Producer producer : kProducers) {
    std::string after;
    for (bool more = true; more;) {
      RR_ASSIGN_OR_RETURN(Names names, NamesOf(run, producer, std::nullopt, after, kRedisBatch));
      more = names.more;
      if (more) after = names.all.back().sample;
      RR_RETURN_IF_ERROR(
          RemoveSamples(context_, run, std::move(names.all), /*ends=*/nullptr, /*unused=*/false, result));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<AppendAck> RedisStore::AppendTo(const RunPtr& run, const AppendCommand& command, RedisSample& sample) {
  const AppendHeader& header = command.header;
  RR_RETURN_IF_ERROR(CheckAppend(header, command.blocks));
  if (absl::Status status = CheckBlocks(run->info, command); !status.ok()) {
    // The run that this server knows may have been dropped and created again.
    const absl::StatusOr<RunPtr> now = LoadRun(command.run);
    if (now.ok() && *now == run) return status;
    run->ended = true;
    return now.ok() ? NoRunError(command.run) : now.status();
  }
  std::optional<RedisSample> parent;
  if (header.prefix) parent.emplace(context_, run, NameOf(header.producer, {.sample = header.prefix->sample}));
  return sample.Append(command, parent ? &*parent : nullptr);
}

absl::Status RedisStore::StatEach(absl::string_view run, Producer producer, absl::Span<const SampleRef> samples,
                                  const TakeState& take) {
  for (size_t begin = 0; begin < samples.size(); begin += kRedisBatch) {
    const absl::Span<const SampleRef> batch = samples.subspan(begin, kRedisBatch);
    std::vector<SampleName> names;
    for (const SampleRef& sample : batch) names.push_back(NameOf(producer, sample));
    RunPtr of;
    auto looked = WithRun(run, [&](const RunPtr& found) { return LookAt(context_, *(of = found), names); });
    for (size_t i = 0; i < batch.size(); ++i) {
      const auto state = [&]() -> absl::StatusOr<SampleState> {
        if (!looked.ok()) return looked.status();
        RR_ASSIGN_OR_RETURN(const auto one, RedisSample(context_, of, names[i]).Check(std::move((*looked)[i])));
        return StateOf(*context_, {one.sample, names[i].handle, producer}, one);
      };
      RR_RETURN_IF_ERROR(take(batch[i], state()));
    }
  }
  return absl::OkStatus();
}

// Merges the sorted names of all parts. A part that fills its limit may have more names after its last one. So the
// result ends at the smallest of these last names; up to there it has no gaps.
absl::StatusOr<RedisStore::Names> RedisStore::NamesOf(const RedisRun& run, Producer producer,
                                                      const std::optional<GroupRange>& groups, absl::string_view after,
                                                      size_t limit) {
  const size_t some = 8 + limit * 2 / RedisRun::kParts;
  std::vector<RedisRequest> requests;
  for (int part = 0; part < RedisRun::kParts; ++part) {
    const std::string key = absl::StrCat(run.PartKeys(part), groups ? "g" : "i", static_cast<int>(producer));
    RedisCommand command({groups ? "ZRANGEBYSCORE" : "ZRANGEBYLEX", key});
    if (groups) {  // Includes group `end` and, beyond 2^53 (scores are doubles), neighbouring groups.
      command.Add(groups->begin).Add(groups->end);
    } else {
      command.Add(after.empty() ? "-" : absl::StrCat("(", after)).Add("+");
      command.Add("LIMIT").Add(0).Add(static_cast<int64_t>(some));
    }
    requests.push_back(RedisContext::Of(std::move(command)));
  }
  std::optional<std::string> end;  // Up to this name the merged list is complete.
  std::vector<std::string> ids;
  for (RedisResult& result : context_->Execute(requests)) {
    if (!result.reply.ok()) return result.reply.status();
    std::vector<RedisReply>& found = result.reply->elements;
    if (!groups && found.size() == some && (!end || found.back().text < *end)) end = found.back().text;
    for (RedisReply& name : found) {
      if (name.text > after) ids.push_back(std::move(name.text));
    }
  }
  std::sort(ids.begin(), ids.end());
  if (end) ids.erase(std::upper_bound(ids.begin(), ids.end(), *end), ids.end());
  Names names{.more = end.has_value()};
  for (std::string& id : ids) names.all.push_back(NameOf(producer, {.sample = std::move(id)}));
  return names;
}

absl::StatusOr<ListPage> RedisStore::List(absl::string_view run, Producer producer, std::optional<GroupRange> groups,
                                          size_t limit, absl::string_view page_token) {
  return WithRun(run, [&](const RunPtr& found) { return ListOf(*found, producer, groups, limit, page_token); });
}

absl::StatusOr<ListPage> RedisStore::ListOf(RedisRun& run, Producer producer, const std::optional<GroupRange>& groups,
                                            size_t limit, absl::string_view page_token) {
  PageBuilder page(limit);
  std::string after(page_token);
  for (bool more = true; more;) {
    RR_ASSIGN_OR_RETURN(const Names next, NamesOf(run, producer, groups, after, kRedisBatch));
    more = next.more;
    // Runs at least once: even without names, LookAt checks that the run exists.
    for (size_t begin = 0; begin == 0 || begin < next.all.size(); begin += kRedisBatch) {
      const absl::Span<const SampleName> names = absl::MakeConstSpan(next.all).subspan(begin, kRedisBatch);
      RR_ASSIGN_OR_RETURN(const std::vector<RedisManifest> found, LookAt(context_, run, names));
      for (size_t i = 0; i < names.size(); ++i) {
        const RedisManifest& one = found[i];
        if (!one.whole() || one.sample != names[i].sample) continue;
        if (groups && !groups->contains((*one.content)->group)) continue;
        if (!page.Add(StateOf(*context_, names[i], one))) return page.Take();
      }
    }
    if (more) after = next.all.back().sample;
  }
  return page.Take();
}

absl::StatusOr<ReleaseResult> RedisStore::Release(absl::string_view run, std::optional<Producer> producer,
                                                  absl::Span<const SampleRef> samples) {
  std::vector<SampleName> names;
  for (const SampleRef& ref : samples) {
    for (const Producer p : kProducers) {
      if (!producer || *producer == p) names.push_back(NameOf(p, ref));
    }
  }
  return WithRun(run, [&](const RunPtr& found) -> absl::StatusOr<ReleaseResult> {
    // Without names it only checks that the run exists.
    RR_RETURN_IF_ERROR(LookAt(context_, *found, {}).status());
    ReleaseResult result;
    RR_RETURN_IF_ERROR(RemoveSamples(context_, *found, names, /*ends=*/nullptr, /*unused=*/false, result));
    return result;
  });
}

absl::StatusOr<ReleaseResult> RedisStore::ReleaseGroups(absl::string_view run, std::optional<Producer> producer,
                                                        GroupRange groups) {
  return WithRun(run, [&](const RunPtr& found) -> absl::StatusOr<ReleaseResult> {
    const auto in_groups = [&](const RedisManifest& one) {
      return one.content.ok() && groups.contains((*one.content)->group);
    };
    ReleaseResult result;
    // Without names it only checks that the run exists.
    RR_RETURN_IF_ERROR(LookAt(context_, *found, {}).status());
    for (const Producer p : kProducers) {
      if (producer && *producer != p) continue;
      RR_ASSIGN_OR_RETURN(Names names, NamesOf(*found, p, groups, "", 0));
      RR_RETURN_IF_ERROR(RemoveSamples(context_, *found, std::move(names.all), in_groups, /*unused=*/false, result));
    }
    return result;
  });
}

// An error ends the sweep: a sample that cannot be removed now is still idle at the next one.
int64_t RedisStore::Sweep(int64_t limit) {
  int64_t removed = 0;
  std::string last;
  const absl::StatusOr<std::vector<RunPtr>> runs = LoadRuns("", SIZE_MAX, last);
  if (!runs.ok()) return 0;
  for (const RunPtr& run : *runs) {
    if (removed < limit && !SweepRun(run, limit, removed).ok()) return removed;
  }
  return removed;
}

absl::Status RedisStore::SweepRun(const RunPtr& run, int64_t limit, int64_t& removed) {
  const auto ttl = std::chrono::duration_cast<std::chrono::milliseconds>(run->info.options.ttl);
  const int64_t idle_since_ms = context_->time.NowMs() - ttl.count() - run->use_grain().count();
  std::vector<RedisRequest> requests;
  for (int part = 0; part < RedisRun::kParts; ++part) {
    for (const Producer producer : kProducers) {
      RedisCommand command(
          {"ZRANGEBYSCORE", absl::StrCat(run->PartKeys(part), "u", static_cast<int>(producer)), "-inf"});
      command.Add(idle_since_ms).Add("LIMIT").Add(0).Add(limit - removed);
      requests.push_back(RedisContext::Of(std::move(command)));
    }
  }
  std::vector<SampleName> names;
  const std::vector<RedisResult> results = context_->Execute(requests);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].reply.ok()) return results[i].reply.status();
    for (const RedisReply& sample : results[i].reply->elements) {
      names.push_back(NameOf(kProducers[i % std::size(kProducers)], {.sample = sample.text}));
    }
  }
  if (static_cast<int64_t>(names.size()) > limit - removed) names.resize(static_cast<size_t>(limit - removed));
  ReleaseResult result;
  const auto idle = [&](const RedisManifest& one) { return one.last_used_ms <= idle_since_ms; };
  const absl::Status status = RemoveSamples(context_, *run, std::move(names), idle, /*unused=*/true, result);
  removed += result.samples;
  return status;
}

// OK as long as one master answers, because it serves a part of the samples. Asks for many keys, so that each master
// has some.
absl::Status RedisStore::Health() {
  const CallDeadline deadline(Clock::Real().Now() + kHealthTimeout);
  std::vector<RedisRequest> requests;
  for (int key = 0; key < kHealthKeys; ++key) {
    requests.push_back(RedisContext::Of(RedisCommand({"EXISTS", absl::StrCat(context_->RunsKey(), key)})));
  }
  for (const RedisResult& result : context_->Execute(requests)) {
    if (result.reply.ok()) return absl::OkStatus();
  }
  return absl::UnavailableError("no Redis server answers");
}

Store::Totals RedisStore::GetTotals() {
  const absl::StatusOr<std::vector<RunState>> runs = Store::ListRuns();
  MutexLock lock(mutex_);
  if (!runs.ok()) return totals_;
  totals_ = Totals();
  for (const RunState& run : *runs) {
    ++totals_.runs;
    totals_.samples += run.samples;
    totals_.stored_bytes += run.stored_bytes;
  }
  return totals_;
}

}  // namespace

std::unique_ptr<Store> NewRedisStore(std::shared_ptr<RedisCluster> cluster, const RedisStoreOptions& options) {
  return std::make_unique<RedisStore>(std::move(cluster), options);
}

}  // namespace routing_replay::server
