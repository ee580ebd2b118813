#include "client/shard/sharded_client.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <type_traits>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "client/reader/decoded_rows.h"
#include "client/reader/read_checker.h"
#include "client/run.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// An error says whose it is.
template <typename T>
absl::StatusOr<T> Named(const MemberSet& members, size_t place, absl::StatusOr<T> answer) {
  if (answer.ok()) return answer;
  return WithServer(answer.status(), members.names.endpoints()[place]);
}

// Whose answers are needed.
enum class Needed {
  kThoseThatAnswer,  // At least one's. What a server that is away has cannot be read now anyway.
  kThoseWithTheRun,  // One without the run has nothing to do.
  kAll,              // The whole is asked for: one that lost the run has lost a part of it.
};

// The answers of the members that have the run, where they are what is needed: NOT_FOUND (kNoRun) if none has the run;
// DATA_LOSS (kNoRun) if one that is needed lost it; else the error of one that is needed.
template <typename T>
absl::StatusOr<std::vector<T>> AnswersOf(const MemberSet& members, std::vector<absl::StatusOr<T>> answers,
                                         Needed needed) {
  std::vector<T> good;
  std::optional<size_t> rejected, away, without;  // The first of each.
  for (size_t i = 0; i < answers.size(); ++i) {
    const absl::Status& status = answers[i].status();
    if (status.ok()) {
      good.push_back(*std::move(answers[i]));
      continue;
    }
    std::optional<size_t>& first = IsNoRun(status) ? without : IsUnreachable(status) ? away : rejected;
    if (!first) first = i;
  }
  if (rejected) return answers[*rejected].status();
  if (away && (good.empty() || needed != Needed::kThoseThatAnswer)) return answers[*away].status();
  if (good.empty()) return answers[*without].status();
  if (!without || needed != Needed::kAll) return good;
  return MakeError(
      absl::StatusCode::kDataLoss,
      absl::StrCat("server ", members.names.endpoints()[*without], ": the run is not there any more, though on ",
                   "others of the list; what was there is gone. Open the run with its geometry, which ",
                   "makes it there again, and restore what is missing from a checkpoint"),
      {.reason = Reason::kNoRun});
}

void AddTo(const ReleaseOutcome& part, ReleaseOutcome& total) {
  total.samples += part.samples;
  total.bytes += part.bytes;
}

absl::StatusOr<ReleaseOutcome> Sum(const absl::StatusOr<std::vector<ReleaseOutcome>>& parts) {
  if (!parts.ok()) return parts.status();
  ReleaseOutcome total;
  for (const ReleaseOutcome& part : *parts) AddTo(part, total);
  return total;
}

class ShardedRun final : public Run {
 public:
  ShardedRun(std::shared_ptr<const MemberSet> members, const std::string& name, const OpenedRun& opened)
      : members_(std::move(members)),
        blocks_{opened.settings.block_rows, opened.settings.codec.value_or(opened.geometry.default_codec()),
                opened.limits.max_message_bytes, opened.limits.max_payload_bytes} {
    OpenedRun part = opened;
    part.sequence_step = members_->size();
    for (const auto& caller : members_->callers) {
      part.first_sequence = part.sequence_step + runs_.size();
      runs_.push_back(MakeRun(caller, name, part));
    }
  }

  const std::string& name() const override { return runs_[0]->name(); }
  const Geometry& geometry() const override { return runs_[0]->geometry(); }
  const RunSettings& settings() const override { return runs_[0]->settings(); }
  const ReleaseOutcome& dropped() const override { return runs_[0]->dropped(); }
  int64_t Handle(absl::string_view sample) const override { return members_->names.HandleOf(sample); }

  std::unique_ptr<Appender> NewAppender(AppenderOptions options) override {
    return MakeShardedAppender(members_, runs_, blocks_, std::move(options));
  }
  absl::StatusOr<AppendOutcome> Put(const AppendOptions& options, const TensorDescription& tensor,
                                    absl::Span<const uint8_t> payload) override {
    if (absl::Status status = CheckFork(options); !status.ok()) return status;
    return AtSample(options.sample, [&](Run& run) { return run.Put(options, tensor, payload); });
  }
  absl::StatusOr<AppendOutcome> PutUnrecorded(const AppendOptions& options, int64_t rows) override {
    if (absl::Status status = CheckFork(options); !status.ok()) return status;
    return AtSample(options.sample, [&](Run& run) { return run.PutUnrecorded(options, rows); });
  }

  absl::Status Read(ReadRequest request, ReadSink& sink, std::chrono::milliseconds timeout) override {
    request.run = name();
    return ReadSharded(*members_, geometry(), request, sink, DeadlineAfter(Clock::Real().Now(), timeout));
  }
  absl::StatusOr<std::vector<SampleRows>> ReadRows(ReadRequest request, std::chrono::milliseconds timeout) override {
    auto ordinals = LayerOrdinals(geometry(), request.layers);
    if (!ordinals.ok()) return ordinals.status();
    RowCollector rows(geometry(), *std::move(ordinals));
    if (absl::Status status = Read(std::move(request), rows, timeout); !status.ok()) return status;
    return rows.Take();
  }

  absl::StatusOr<SampleState> Seal(absl::string_view sample, Producer producer, int64_t num_tokens,
                                   int64_t revision) override {
    return StateOf(sample, [&](Run& run) { return run.Seal(sample, producer, num_tokens, revision); });
  }
  absl::StatusOr<SampleState> Truncate(absl::string_view sample, Producer producer, int64_t rows,
                                       std::optional<int64_t> expected_revision) override {
    return StateOf(sample, [&](Run& run) { return run.Truncate(sample, producer, rows, expected_revision); });
  }
  absl::StatusOr<SampleState> Stat(absl::string_view sample, Producer producer) override {
    return StateOf(sample, [&](Run& run) { return run.Stat(sample, producer); });
  }
  absl::StatusOr<std::vector<SampleState>> StatMany(absl::Span<const std::string> samples, Producer producer) override;
  absl::StatusOr<std::vector<SampleState>> List(std::optional<std::pair<int64_t, int64_t>> groups,
                                                Producer producer) override;
  absl::StatusOr<ReleaseOutcome> Release(absl::Span<const std::string> samples, const ReleaseOptions& options) override;
  absl::StatusOr<ReleaseOutcome> ReleaseGroups(int64_t begin, int64_t end, const ReleaseOptions& options) override {
    return Sum(OfAll<ReleaseOutcome>([&](Run& run, size_t) { return run.ReleaseGroups(begin, end, options); },
                                     Needed::kThoseThatAnswer));
  }
  absl::StatusOr<ReleaseOutcome> Drop() override {
    return Sum(OfAll<ReleaseOutcome>([](Run& run, size_t) { return run.Drop(); }, Needed::kThoseWithTheRun));
  }

 private:
  absl::Status CheckFork(const AppendOptions& options) const {
    if (options.prefix_sample.empty()) return absl::OkStatus();
    return WithSample(members_->names.CheckFork(options.sample, options.prefix_sample), options.sample);
  }

  template <typename Call>
  std::invoke_result_t<Call, Run&> At(size_t place, const Call& call) {
    return Named(*members_, place, call(*runs_[place]));
  }
  template <typename Call>
  std::invoke_result_t<Call, Run&> AtSample(absl::string_view sample, const Call& call) {
    return At(members_->names.PlaceOf(sample), call);
  }
  template <typename Call>
  absl::StatusOr<SampleState> StateOf(absl::string_view sample, const Call& call) {
    auto state = AtSample(sample, call);
    if (state.ok()) state->handle = Handle(sample);
    return state;
  }
  template <typename T, typename Call>
  absl::StatusOr<std::vector<T>> OfAll(const Call& call, Needed needed) {
    auto answers = FanOut(members_->size(), [&](size_t place) -> absl::StatusOr<T> {
      return At(place, [&](Run& run) { return call(run, place); });
    });
    return AnswersOf(*members_, std::move(answers), needed);
  }

  const std::shared_ptr<const MemberSet> members_;
  const BlockOptions blocks_;
  std::vector<std::shared_ptr<Run>> runs_;  // By place.
};

absl::StatusOr<std::vector<SampleState>> ShardedRun::StatMany(absl::Span<const std::string> samples,
                                                              Producer producer) {
  std::map<size_t, std::vector<std::string>> asked;  // By place.
  for (const std::string& sample : samples) asked[members_->names.PlaceOf(sample)].push_back(sample);
  std::vector<size_t> places;
  for (const auto& [place, names] : asked) places.push_back(place);
  auto parts = FanOut(places.size(), [&](size_t i) {
    return At(places[i], [&](Run& run) { return run.StatMany(asked[places[i]], producer); });
  });
  std::unordered_map<std::string, SampleState> found;
  for (auto& part : parts) {
    if (!part.ok()) return part.status();
    for (SampleState& state : *part) found.try_emplace(state.sample, std::move(state));
  }
  std::vector<SampleState> states;  // In the order asked, each once.
  for (const std::string& sample : samples) {
    auto node = found.extract(sample);
    if (node.empty()) continue;
    states.push_back(std::move(node.mapped()));
    states.back().handle = Handle(sample);
  }
  return states;
}

absl::StatusOr<std::vector<SampleState>> ShardedRun::List(std::optional<std::pair<int64_t, int64_t>> groups,
                                                          Producer producer) {
  auto parts =
      OfAll<std::vector<SampleState>>([&](Run& run, size_t) { return run.List(groups, producer); }, Needed::kAll);
  if (!parts.ok()) return parts.status();
  std::vector<SampleState> all;
  for (std::vector<SampleState>& part : *parts) std::move(part.begin(), part.end(), std::back_inserter(all));
  for (SampleState& state : all) state.handle = Handle(state.sample);
  std::sort(all.begin(), all.end(), [](const SampleState& a, const SampleState& b) { return a.sample < b.sample; });
  return all;
}

absl::StatusOr<ReleaseOutcome> ShardedRun::Release(absl::Span<const std::string> samples,
                                                   const ReleaseOptions& options) {
  const std::vector<int64_t>& handles = options.handles;
  struct Part {
    std::vector<std::string> samples;
    ReleaseOptions options;
  };
  std::vector<Part> parts(members_->size(), {{}, {.producer = options.producer}});
  for (size_t i = 0; i < samples.size() + handles.size(); ++i) {
    const bool by_id = i < samples.size();
    if (!by_id && handles[i - samples.size()] == 0) continue;
    const auto place =
        by_id ? members_->names.PlaceOf(samples[i]) : members_->names.PlaceOfHandle(handles[i - samples.size()]);
    if (!place.ok()) return place.status();
    Part& part = parts[*place];
    if (by_id) part.samples.push_back(samples[i]);
    if (!by_id) part.options.handles.push_back(BareHandle(handles[i - samples.size()]));
  }
  return Sum(OfAll<ReleaseOutcome>(
      [&](Run& run, size_t place) { return run.Release(parts[place].samples, parts[place].options); },
      Needed::kThoseThatAnswer));
}

std::vector<RunSummary> Merged(std::vector<std::vector<RunSummary>> parts) {
  std::map<std::string, RunSummary> runs;
  for (std::vector<RunSummary>& part : parts) {
    for (RunSummary& run : part) {
      const auto [at, is_new] = runs.try_emplace(run.run, run);
      if (is_new) continue;
      at->second.samples += run.samples;
      at->second.sealed_samples += run.sealed_samples;
      at->second.committed_rows += run.committed_rows;
      at->second.stored_bytes += run.stored_bytes;
    }
  }
  std::vector<RunSummary> merged;
  for (auto& [name, run] : runs) merged.push_back(std::move(run));
  return merged;
}

ServerSummary Merged(const std::vector<ServerSummary>& parts) {
  ServerSummary all{.version = parts[0].version, .store = parts[0].store, .uptime = parts[0].uptime};
  std::map<std::string, int64_t> counters;
  for (const ServerSummary& part : parts) {
    for (const auto sum :
         {&ServerSummary::budget_bytes, &ServerSummary::stored_bytes, &ServerSummary::reserved_bytes,
          &ServerSummary::spill_budget_bytes, &ServerSummary::spilled_bytes, &ServerSummary::samples}) {
      all.*sum += part.*sum;
    }
    all.runs = std::max(all.runs, part.runs);
    all.uptime = std::min(all.uptime, part.uptime);
    all.draining = all.draining || part.draining;
    for (const auto& [name, value] : part.counters) counters[name] += value;
  }
  all.counters.assign(counters.begin(), counters.end());
  return all;
}

class ShardedClient final : public Client {
  // What `call` says of the members.
  template <typename Call>
  auto OfAll(const Call& call, Needed needed) {
    auto answers = FanOut(members_->size(),
                          [&](size_t place) { return Named(*members_, place, call(*members_->callers[place])); });
    return AnswersOf(*members_, std::move(answers), needed);
  }

 public:
  explicit ShardedClient(std::shared_ptr<const MemberSet> members) : members_(std::move(members)) {}

  absl::StatusOr<std::shared_ptr<Run>> OpenRun(absl::string_view run, const Geometry& geometry,
                                               const RunSettings& settings, std::optional<int64_t> resume_at) override {
    return Open(MakeOpenRun(run, geometry, settings, resume_at), Needed::kAll);
  }

  // Members that are not there do not keep it from those that are: only if none is, they are waited for.
  absl::StatusOr<std::shared_ptr<Run>> JoinRun(absl::string_view run) override {
    for (const auto& caller : members_->callers) caller->set_gone(true);
    auto joined = Open(MakeJoinRun(run), Needed::kThoseThatAnswer);
    if (!IsUnreachable(joined.status())) return joined;
    for (const auto& caller : members_->callers) caller->set_gone(false);
    return Open(MakeJoinRun(run), Needed::kThoseThatAnswer);
  }

  absl::StatusOr<std::vector<RunSummary>> ListRuns() override {
    auto parts = OfAll(CallListRuns, Needed::kAll);
    if (!parts.ok()) return parts.status();
    return Merged(*std::move(parts));
  }

  absl::StatusOr<ServerSummary> GetServerInfo() override {
    const auto parts = OfAll(CallServerInfo, Needed::kAll);
    if (!parts.ok()) return parts.status();
    return Merged(*parts);
  }

 private:
  absl::StatusOr<std::shared_ptr<Run>> Open(v1::OpenRunRequest request, Needed needed) {
    request.set_shard_fingerprint(members_->names.fingerprint());
    const auto opened = OfAll([&](const Caller& caller) { return CallOpenRun(caller, request); }, needed);
    if (!opened.ok()) return opened.status();
    OpenedRun whole = opened->front();
    whole.dropped = {};
    for (const OpenedRun& other : *opened) {
      AddTo(other.dropped, whole.dropped);
      if (other.geometry == whole.geometry) continue;
      return MakeError(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("run \"", request.run(), "\" has ", whole.geometry.DebugString(),
                                    " on one server, ", other.geometry.DebugString(), " on another"),
                       {.reason = Reason::kGeometryMismatch, .field = "geometry"});
    }
    return std::make_shared<ShardedRun>(members_, request.run(), whole);
  }

  const std::shared_ptr<const MemberSet> members_;
};

}  // namespace

bool IsNoRun(const absl::Status& status) {
  return absl::IsNotFound(status) && GetErrorDetail(status).value_or(ErrorDetail()).reason == Reason::kNoRun;
}

absl::Status WithServer(const absl::Status& status, const std::string& endpoint) {
  if (status.ok()) return status;
  const std::string message = absl::StrCat("server ", endpoint, ": ", status.message());
  const auto detail = GetErrorDetail(status);
  return detail ? MakeError(status.code(), message, *detail) : absl::Status(status.code(), message);
}

absl::StatusOr<std::unique_ptr<Client>> ConnectSharded(const ClientOptions& options) {
  auto names = ShardMembers::Parse(options.endpoint);
  if (!names.ok()) return names.status();
  auto set = std::make_shared<MemberSet>(MemberSet{.names = *std::move(names)});
  for (const std::string& endpoint : set->names.endpoints()) {
    auto link = Link::Open(endpoint, options.use_http_proxy, options.security, options.call_timeout);
    if (!link.ok()) return link.status();
    set->callers.push_back(std::make_shared<const Caller>(*std::move(link), options.call_timeout, true));
  }
  return std::make_unique<ShardedClient>(std::move(set));
}

}  // namespace routing_replay::client
