#include "client/shard/sharded_client.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <type_traits>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/appender/open_appends.h"
#include "client/caller.h"
#include "client/reader/decoded_rows.h"
#include "client/reader/read_checker.h"
#include "client/reader/reader.h"
#include "client/run.h"
#include "client/shard/members.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// The servers, by place. Thread-safe. The callers of members remember which of them are gone (Caller).
struct MemberSet {
  ShardMembers names;
  std::vector<std::shared_ptr<const Caller>> callers;

  size_t size() const { return callers.size(); }
};

// NOT_FOUND (kNoRun).
bool IsNoRun(const absl::Status& status) {
  return absl::IsNotFound(status) && GetErrorDetail(status).value_or(ErrorDetail()).reason == Reason::kNoRun;
}

// `status` with the server named before its message. OK stays OK.
absl::Status WithServer(const absl::Status& status, const std::string& endpoint) {
  if (status.ok()) return status;
  const std::string message = absl::StrCat("server ", endpoint, ": ", status.message());
  const auto detail = GetErrorDetail(status);
  return detail ? MakeError(status.code(), message, *detail) : absl::Status(status.code(), message);
}

void AddTo(const AppenderMetrics& part, AppenderMetrics& total) {
  static constexpr int64_t AppenderMetrics::*kCounters[] = {
      &AppenderMetrics::appends,          &AppenderMetrics::acknowledged,
      &AppenderMetrics::failed,           &AppenderMetrics::rows,
      &AppenderMetrics::trimmed_rows,     &AppenderMetrics::conflicting_rows,
      &AppenderMetrics::unrecorded_rows,  &AppenderMetrics::payload_bytes,
      &AppenderMetrics::resent_bytes,     &AppenderMetrics::reconnects,
      &AppenderMetrics::credit_refusals,  &AppenderMetrics::dropped_appends,
      &AppenderMetrics::dropped_rows,     &AppenderMetrics::refused_appends,
      &AppenderMetrics::narrowed_appends, &AppenderMetrics::unrecorded_appends,
      &AppenderMetrics::surplus_rows,     &AppenderMetrics::stale_appends,
      &AppenderMetrics::queued_bytes,     &AppenderMetrics::open_appends,
  };
  for (const auto counter : kCounters) total.*counter += part.*counter;
  for (const auto& [reason, count] : part.refused_by_reason) total.refused_by_reason[reason] += count;
}

// One appender per member that is appended to, each with an equal share of the queue: a member that does not answer
// fills its own and no other's. A sequence number is the member's place modulo their number (OpenedRun). `runs`: by
// place; `blocks`: of all of them.
class ShardedAppender final : public PlanAppender {
 public:
  ShardedAppender(std::shared_ptr<const MemberSet> members, std::vector<std::shared_ptr<Run>> runs,
                  const BlockOptions& blocks, AppenderOptions options)
      : PlanAppender(options),
        members_(std::move(members)),
        runs_(std::move(runs)),
        blocks_(blocks),
        options_(std::move(options)),
        parts_(runs_.size()) {
    options_.max_queued_bytes = std::max<int64_t>(1, options_.max_queued_bytes / static_cast<int64_t>(runs_.size()));
    // One at a time, whichever part it is of.
    if (options_.on_outcome) {
      options_.on_outcome = [this, tell = std::move(options_.on_outcome)](const AppendOutcome& outcome) {
        MutexLock lock(telling_);
        tell(outcome);
      };
    }
    if (options_.on_outcomes) {
      options_.on_outcomes = [this, tell = std::move(options_.on_outcomes)](std::vector<AppendOutcome> outcomes,
                                                                            std::function<void()> seen) {
        MutexLock lock(telling_);
        tell(std::move(outcomes), std::move(seen));
      };
    }
  }

  const Geometry& geometry() const override { return runs_[0]->geometry(); }
  BlockOptions blocks() const override { return blocks_; }

  absl::StatusOr<std::optional<Queued>> Enqueue(AppendPlan& plan, Note note, bool may_wait) override {
    const AppendHeader& header = plan.pieces.front().header;
    if (header.prefix) {
      const absl::Status fits = members_->names.CheckFork(header.sample, header.prefix->sample);
      if (!fits.ok()) {
        CountRefusal(Reason::kField);
        return WithSample(fits, header.sample);
      }
    }
    absl::StatusOr<PlanAppender*> part = PartOf(members_->names.PlaceOf(header.sample));
    if (!part.ok()) return part.status();
    return (*part)->Enqueue(plan, std::move(note), may_wait);
  }

  absl::Status SettleUpTo(uint64_t sequence, std::chrono::milliseconds timeout) override {
    PlanAppender* part = PartIfAny(sequence % runs_.size());
    return part == nullptr ? absl::OkStatus() : part->SettleUpTo(sequence, timeout);
  }

  absl::Status Flush(std::chrono::milliseconds timeout, AppendFailures* failures) override {
    return OfAll(&Appender::Flush, timeout, failures);
  }

  absl::StatusOr<std::optional<AppendTrouble>> Settle(absl::string_view sample, std::optional<int64_t> attempt,
                                                      std::chrono::milliseconds timeout) override {
    PlanAppender* part = PartIfAny(members_->names.PlaceOf(sample));
    if (part == nullptr) return std::optional<AppendTrouble>();
    return part->Settle(sample, attempt, timeout);
  }

  absl::Status Close(std::chrono::milliseconds timeout, AppendFailures* failures) override {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    return OfAll(&Appender::Close, timeout, failures);
  }

  AppenderMetrics metrics() const override {
    AppenderMetrics total;
    {
      MutexLock lock(mutex_);
      total = rejected_;
    }
    for (size_t place = 0; place < runs_.size(); ++place) {
      if (const Appender* part = PartIfAny(place)) AddTo(part->metrics(), total);
    }
    return total;
  }

  void CountRefusal(Reason reason) override {
    MutexLock lock(mutex_);
    ++rejected_.refused_appends;
    ++rejected_.refused_by_reason[reason];
  }

 private:
  using Ending = absl::Status (Appender::*)(std::chrono::milliseconds, AppendFailures*);

  // What `call` says of all parts, one after the other: the first error names its server.
  absl::Status OfAll(Ending call, std::chrono::milliseconds timeout, AppendFailures* failures) {
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
    if (failures != nullptr) *failures = {};
    absl::Status first;
    for (size_t place = 0; place < runs_.size(); ++place) {
      PlanAppender* part = PartIfAny(place);
      if (part == nullptr) continue;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::Real().Now());
      AppendFailures of_part;
      first.Update(WithServer((part->*call)(std::max(left, std::chrono::milliseconds(0)), &of_part),
                              members_->names.endpoints()[place]));
      if (failures == nullptr) continue;
      std::move(of_part.failures.begin(), of_part.failures.end(), std::back_inserter(failures->failures));
      failures->failed_samples.merge(of_part.failed_samples);
      failures->appends += of_part.appends;
    }
    return first;
  }

  // The part of a member, which is made where there is none.
  absl::StatusOr<PlanAppender*> PartOf(size_t place) {
    MutexLock lock(mutex_);
    if (closed_) return absl::CancelledError("the appender is closed");
    if (!parts_[place]) parts_[place] = runs_[place]->NewAppender(options_);
    return &PlanAppender::Of(*parts_[place]);
  }
  PlanAppender* PartIfAny(size_t place) const {
    MutexLock lock(mutex_);
    return parts_[place] ? &PlanAppender::Of(*parts_[place]) : nullptr;
  }

  const std::shared_ptr<const MemberSet> members_;
  const std::vector<std::shared_ptr<Run>> runs_;
  const BlockOptions blocks_;
  AppenderOptions options_;
  Mutex telling_;
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  AppenderMetrics rejected_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Appender>> parts_ ABSL_GUARDED_BY(mutex_);  // What is there stays.
};

// Lets one sample after the other into a sink, from the threads of the members that have them.
class Turns {
 public:
  // `call`: of all members, which ends with the first error.
  Turns(ReadSink& sink, Cancellation& call) : sink_(sink), call_(call) {}

  ReadSink& sink() { return sink_; }
  // Waits until all samples before this one have passed. The error of the read if it failed.
  absl::Status Await(int32_t index) {
    MutexLock lock(mutex_);
    while (turn_ < index && status_.ok()) changed_.Wait(mutex_);
    return status_;
  }
  void Pass(int32_t index) {
    MutexLock lock(mutex_);
    turn_ = index + 1;
    changed_.NotifyAll();
  }
  // `status`, which is that of the read if it is the first that is not OK.
  absl::Status Note(absl::Status status) {
    if (status.ok()) return status;
    {
      MutexLock lock(mutex_);
      status_.Update(status);
      changed_.NotifyAll();
    }
    call_.Cancel();
    return status;
  }
  absl::Status status() const {
    MutexLock lock(mutex_);
    return status_;
  }

 private:
  ReadSink& sink_;
  Cancellation& call_;
  mutable Mutex mutex_;
  CondVar changed_;
  int32_t turn_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// What one member is asked for.
struct Part {
  ReadRequest request;           // Its samples, by id or by bare handle, …
  std::vector<int32_t> indices;  // … and which ones of the whole read they are, ascending.
};

// A member's samples as those of the whole read.
class PartSink final : public ReadSink {
 public:
  PartSink(const Part& part, size_t layers, Turns& turns)
      : part_(part), layers_(static_cast<int64_t>(layers)), turns_(turns) {}

  absl::Status OnRecord(const SampleRecord& record) override {
    const bool is_new = record.index != at_;
    if (is_new) Pass();
    at_ = record.index;
    if (absl::Status status = turns_.Await(part_.indices[at_]); !status.ok()) return status;
    has_passed_ = false;
    const bool is_ok = record.status == SampleStatus::kOk;
    left_ = is_ok ? TotalRows(PromisedRows(part_.request.samples[at_], record)) * layers_ : 0;
    SampleRecord whole = record;
    whole.index = part_.indices[at_];
    absl::Status status = turns_.Note(turns_.sink().OnRecord(whole));
    // Of one that is taken back bytes may still come, which the checker gathers in the sink's staging.
    if (is_new && left_ == 0) Pass();
    return status;
  }

  absl::Status OnPiece(const ReadPiece& piece) override {
    left_ -= piece.rows.size() * piece.layer_count;
    ReadPiece whole = piece;
    whole.sample_index = part_.indices[at_];
    absl::Status status = turns_.Note(turns_.sink().OnPiece(whole));
    if (left_ <= 0) Pass();
    return status;
  }

  std::vector<uint8_t>* staging() override { return turns_.sink().staging(); }

  // The member's answer has ended: without it there is nothing more of it.
  void End(const absl::Status& end, const std::string& endpoint) {
    absl::Status status = absl::IsCancelled(end) ? end : WithServer(end, endpoint);
    if (absl::IsUnavailable(end) || IsNoRun(end)) {
      const std::string message(status.message());
      status = absl::OkStatus();
      for (int32_t next = left_ > 0 ? at_ : at_ + 1; next < static_cast<int32_t>(part_.indices.size()); ++next) {
        const bool lost_run = IsNoRun(end) && next != at_;
        const SampleStatus why = lost_run ? SampleStatus::kNotFound : SampleStatus::kUnavailable;
        status.Update(OnRecord({.index = next, .status = why, .message = message}));
      }
    }
    turns_.Note(status).IgnoreError();
    Pass();
  }

 private:
  // The present sample is complete.
  void Pass() {
    if (at_ >= 0 && !std::exchange(has_passed_, true)) turns_.Pass(part_.indices[at_]);
  }

  const Part& part_;
  const int64_t layers_;
  Turns& turns_;
  int32_t at_ = -1;   // Of the part: the sample whose record came last, …
  int64_t left_ = 0;  // … and so many rows x layers of it did not come yet.
  bool has_passed_ = false;
};

// As Run::Read in client.h, with request.run filled in. The members send at the same time, each to a thread that hands
// its samples to the sink when their turn comes. A sample whose server is away has the status UNAVAILABLE.
absl::Status ReadSharded(const MemberSet& members, const Geometry& geometry, const ReadRequest& request, ReadSink& sink,
                         Clock::Time deadline) {
  std::map<size_t, Part> parts;  // By place.
  for (size_t i = 0; i < request.samples.size(); ++i) {
    const SampleRead& asked = request.samples[i];
    const absl::StatusOr<size_t> place =
        asked.sample.empty() ? members.names.PlaceOfHandle(asked.handle) : members.names.PlaceOf(asked.sample);
    if (!place.ok()) return place.status();
    Part& part = parts[*place];
    part.indices.push_back(static_cast<int32_t>(i));
    part.request.samples.push_back(asked);
    part.request.samples.back().handle = BareHandle(asked.handle);
  }
  std::vector<size_t> places;
  for (auto& [place, part] : parts) {
    places.push_back(place);
    std::vector<SampleRead> samples = std::move(part.request.samples);
    part.request = request;
    part.request.samples = std::move(samples);
  }
  const size_t layers = request.layers.empty() ? geometry.num_moe_layers() : request.layers.size();
  Cancellation call(NoLaterThanCall(deadline));
  const OnCancel cancel([&call] { call.Cancel(); });
  const CallScope scope(&call);
  Turns turns(sink, call);
  FanOut(places.size(), [&](size_t i) {
    const Part& part = parts.at(places[i]);
    const Caller& caller = *members.callers[places[i]];
    PartSink part_sink(part, layers, turns);
    const absl::Status end = ReadInto(*caller.link(), geometry, part.request, part_sink, deadline,
                                      caller.is_gone() ? std::chrono::milliseconds(0) : Caller::kBrief);
    caller.set_gone(absl::IsUnavailable(end));
    part_sink.End(end, members.names.endpoints()[places[i]]);
    return end;
  });
  return turns.status();
}

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
    return std::make_unique<ShardedAppender>(members_, runs_, blocks_, std::move(options));
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
