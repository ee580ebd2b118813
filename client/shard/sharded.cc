#include "client/shard/sharded.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "client/appender/append_plan.h"
#include "client/call/cancellation.h"
#include "client/reader/read_checker.h"
#include "client/reader/reader.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {
namespace {

// One appender per member in use, each with an equal share of the queue, so that a member that does not answer fills
// only its own share. A sequence number modulo the number of members is the member's place.
class ShardedAppender final : public PlanAppender {
 public:
  ShardedAppender(std::shared_ptr<const Servers> servers, std::vector<AppenderRun> runs, AppenderOptions options)
      : PlanAppender(runs[0].geometry, runs[0].blocks, options),
        servers_(std::move(servers)),
        runs_(std::move(runs)),
        options_(std::move(options)),
        parts_(runs_.size()) {
    options_.max_queued_bytes = std::max<int64_t>(1, options_.max_queued_bytes / static_cast<int64_t>(runs_.size()));
    // Serialises the calls of on_outcome that come from several parts.
    if (options_.on_outcome) {
      options_.on_outcome = [this, tell = std::move(options_.on_outcome)](const AppendOutcome& outcome) {
        MutexLock lock(telling_);
        tell(outcome);
      };
    }
  }

  absl::StatusOr<std::optional<Queued>> Enqueue(AppendPlan& plan, bool may_wait) override {
    const AppendHeader& header = plan.pieces.front().header;
    if (header.prefix) {
      RR_RETURN_IF_ERROR(servers_->CheckFork(header.sample, header.prefix->sample));
    }
    RR_ASSIGN_OR_RETURN(PlanAppender* const part, PartOf(servers_->PlaceOf(header.sample)));
    return part->Enqueue(plan, may_wait);
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
    PlanAppender* part = PartIfAny(servers_->PlaceOf(sample));
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
    for (size_t place = 0; place < runs_.size(); ++place) {
      const Appender* part = PartIfAny(place);
      if (part == nullptr) continue;
      const AppenderMetrics metrics = part->metrics();
      for (const auto& [name, counter] : kAppenderCounters) total.*counter += metrics.*counter;
    }
    return total;
  }

 private:
  using Ending = absl::Status (Appender::*)(std::chrono::milliseconds, AppendFailures*);

  // Runs `call` on all parts, one after the other. Returns the first error, with the name of its server.
  absl::Status OfAll(Ending call, std::chrono::milliseconds timeout, AppendFailures* failures) {
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
    if (failures != nullptr) *failures = {};
    absl::Status first;
    for (size_t place = 0; place < runs_.size(); ++place) {
      PlanAppender* part = PartIfAny(place);
      if (part == nullptr) continue;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::Real().Now());
      AppendFailures of_part;
      first.Update(servers_->Named(place, (part->*call)(std::max(left, std::chrono::milliseconds(0)), &of_part)));
      if (failures == nullptr) continue;
      std::move(of_part.failures.begin(), of_part.failures.end(), std::back_inserter(failures->failures));
      failures->failed_samples.merge(of_part.failed_samples);
      failures->appends += of_part.appends;
    }
    return first;
  }

  // Returns the appender of a member, which is made at its first use.
  absl::StatusOr<PlanAppender*> PartOf(size_t place) {
    MutexLock lock(mutex_);
    if (closed_) return absl::CancelledError("the appender is closed");
    if (!parts_[place]) parts_[place] = MakeAppender(runs_[place], options_);
    return parts_[place].get();
  }
  PlanAppender* PartIfAny(size_t place) const {
    MutexLock lock(mutex_);
    return parts_[place].get();
  }

  const std::shared_ptr<const Servers> servers_;
  const std::vector<AppenderRun> runs_;
  AppenderOptions options_;
  Mutex telling_;
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<PlanAppender>> parts_ ABSL_GUARDED_BY(mutex_);  // Parts are never removed.
};

// Passes samples to a sink in order, from the threads of the members that have them.
class Turns {
 public:
  // `call`: the call in which all members are read; cancelled at the first error.
  Turns(ReadSink& sink, Cancellation& call) : sink_(sink), call_(call) {}

  ReadSink& sink() { return sink_; }
  // Waits until all samples before this one were passed on. Returns the error of the read if it has failed.
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
  // Records `status`; the first one that is not OK becomes the result of the read.
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

// The request to one member.
struct Part {
  ReadRequest request;           // Asks for this member's samples, by id or by the handle that the member gave.
  std::vector<int32_t> indices;  // The index of each of these samples in the whole read, ascending.
};

// Maps a member's samples to those of the whole read.
class PartSink final : public ReadSink {
 public:
  PartSink(const Part& part, size_t layers, Turns& turns)
      : part_(part), layers_(static_cast<int64_t>(layers)), turns_(turns) {}

  absl::Status OnRecord(const SampleRecord& record) override {
    const bool is_new = record.index != at_;
    if (is_new) Pass();
    at_ = record.index;
    RR_RETURN_IF_ERROR(turns_.Await(part_.indices[at_]));
    has_passed_ = false;
    const bool is_ok = record.status == SampleStatus::kOk;
    left_ = is_ok ? TotalRows(PromisedRows(part_.request.samples[at_], record)) * layers_ : 0;
    SampleRecord whole = record;
    whole.index = part_.indices[at_];
    absl::Status status = turns_.Note(turns_.sink().OnRecord(whole));
    // Pass on the turn if no rows follow this record. But keep it after a second record of the sample: the message may
    // still have pieces that the record replaced. The checker puts their bytes into the sink's staging buffer, which
    // only one member at a time may use.
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

  // Reports that the member's answer has ended. `named`: `end` with the server's name.
  void End(const absl::Status& end, const absl::Status& named) {
    absl::Status status = absl::IsCancelled(end) ? end : named;
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
  // Reports that the current sample is complete, so that the next one may be passed on.
  void Pass() {
    if (at_ >= 0 && !std::exchange(has_passed_, true)) turns_.Pass(part_.indices[at_]);
  }

  const Part& part_;
  const int64_t layers_;
  Turns& turns_;
  int32_t at_ = -1;   // Index, in this member's part, of the sample whose record came last.
  int64_t left_ = 0;  // How many pairs of row and layer of this sample are still to come.
  bool has_passed_ = false;
};

}  // namespace

std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<const Servers> servers, std::vector<AppenderRun> runs,
                                              AppenderOptions options) {
  return std::make_unique<ShardedAppender>(std::move(servers), std::move(runs), std::move(options));
}

absl::Status ReadSharded(const Servers& servers, const Geometry& geometry, const ReadRequest& request, ReadSink& sink,
                         Clock::Time deadline) {
  ReadRequest common = request;
  common.samples.clear();
  std::map<size_t, Part> parts;  // By place.
  for (size_t i = 0; i < request.samples.size(); ++i) {
    SampleRead asked = request.samples[i];
    size_t place = servers.PlaceOf(asked.sample);
    if (asked.sample.empty()) {
      RR_ASSIGN_OR_RETURN(const auto found, servers.FindHandle(asked.handle));
      std::tie(place, asked.handle) = found;
    }
    Part& part = parts.try_emplace(place, Part{.request = common}).first->second;
    part.indices.push_back(static_cast<int32_t>(i));
    part.request.samples.push_back(std::move(asked));
  }
  const std::vector<std::pair<const size_t, Part>> by_place(parts.begin(), parts.end());
  const size_t layers = request.layers.empty() ? geometry.num_moe_layers() : request.layers.size();
  Cancellation call(NoLaterThanCall(deadline));
  const OnCancel cancel([&call] { call.Cancel(); });
  const CallScope scope(&call);
  Turns turns(sink, call);
  FanOut(by_place.size(), [&](size_t i) {
    const auto& [place, part] = by_place[i];
    const Caller& caller = servers.at(place);
    PartSink part_sink(part, layers, turns);
    const absl::Status end = ReadInto(*caller.link(), geometry, part.request, part_sink, deadline,
                                      caller.is_gone() ? std::chrono::milliseconds(0) : Caller::kBrief);
    caller.set_gone(absl::IsUnavailable(end));
    part_sink.End(end, servers.Named(place, end));
    return end;
  });
  return turns.status();
}

}  // namespace routing_replay::client
