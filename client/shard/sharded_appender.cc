#include "client/shard/sharded.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "client/appender/append_plan.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

void AddTo(const AppenderMetrics& part, AppenderMetrics& total) {
  for (const auto& [name, counter] : kAppenderCounters) total.*counter += part.*counter;
  for (const auto& [reason, count] : part.rejected_by_reason) total.rejected_by_reason[reason] += count;
}

// One appender per member in use, each with an equal share of the queue, so that a member that does not answer fills
// only its own share. A sequence number modulo the number of members is the member's place.
class ShardedAppender final : public PlanAppender {
 public:
  ShardedAppender(std::shared_ptr<const Servers> servers, std::vector<AppenderRun> runs, AppenderOptions options)
      : PlanAppender(options),
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

  const Geometry& geometry() const override { return *runs_[0].geometry; }
  BlockOptions blocks() const override { return runs_[0].blocks; }

  absl::StatusOr<std::optional<Queued>> Enqueue(AppendPlan& plan, bool may_wait) override {
    const AppendHeader& header = plan.pieces.front().header;
    if (header.prefix) {
      if (absl::Status status = servers_->CheckFork(header.sample, header.prefix->sample); !status.ok()) {
        CountRejection(Reason::kField);
        return status;
      }
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
    {
      MutexLock lock(mutex_);
      total = rejected_;
    }
    for (size_t place = 0; place < runs_.size(); ++place) {
      if (const Appender* part = PartIfAny(place)) AddTo(part->metrics(), total);
    }
    return total;
  }

  void CountRejection(Reason reason) override {
    MutexLock lock(mutex_);
    ++rejected_.rejected_appends;
    ++rejected_.rejected_by_reason[reason];
  }

 private:
  using Ending = absl::Status (Appender::*)(std::chrono::milliseconds, AppendFailures*);

  // Runs `call` on all parts, one after the other; the first error names its server.
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
  AppenderMetrics rejected_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<PlanAppender>> parts_ ABSL_GUARDED_BY(mutex_);  // Parts are never removed.
};

}  // namespace

std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<const Servers> servers, std::vector<AppenderRun> runs,
                                              AppenderOptions options) {
  return std::make_unique<ShardedAppender>(std::move(servers), std::move(runs), std::move(options));
}

}  // namespace routing_replay::client
