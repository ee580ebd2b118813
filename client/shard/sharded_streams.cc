// What goes in and out of several servers in streams: the appender and the read of a sharded run.
#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/appender/open_appends.h"
#include "client/reader/read_checker.h"
#include "client/reader/reader.h"
#include "client/shard/sharded_client.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

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

}  // namespace

std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<const MemberSet> members,
                                              std::vector<std::shared_ptr<Run>> runs, const BlockOptions& blocks,
                                              AppenderOptions options) {
  return std::make_unique<ShardedAppender>(std::move(members), std::move(runs), blocks, std::move(options));
}

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

}  // namespace routing_replay::client
