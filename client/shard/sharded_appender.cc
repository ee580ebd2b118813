#include "client/shard/sharded_appender.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "client/appender/open_appends.h"
#include "client/appender/plan_appender.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

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

void AddTo(AppendFailures part, AppendFailures& total) {
  total.failed_samples.merge(part.failed_samples);
  std::move(part.failures.begin(), part.failures.end(), std::back_inserter(total.failures));
  total.appends += part.appends;
}

AppendFacts FactsOf(const AppendPlan& plan) {
  const AppendHeader& header = plan.pieces.front().header;
  return {.producer = header.producer,
          .sample = header.sample,
          .prefix_sample = header.prefix ? absl::string_view(header.prefix->sample) : "",
          .begins = header.rows.begin == 0 && plan.pieces.back().header.rows.end > 0 && header.revision == 0 &&
                    header.restart_nonce == 0};
}

class ShardedAppender final : public PlanAppender {
 public:
  ShardedAppender(std::shared_ptr<Finder> finder, std::vector<std::shared_ptr<Run>> runs, const BlockOptions& blocks,
                  AppenderOptions options)
      : PlanAppender(options),
        finder_(std::move(finder)),
        runs_(std::move(runs)),
        blocks_(blocks),
        options_(std::move(options)),
        parts_(runs_.size()) {
    options_.max_queued_bytes = std::max<int64_t>(1, options_.max_queued_bytes / static_cast<int64_t>(runs_.size()));
  }

  const Geometry& geometry() const override { return runs_[0]->geometry(); }
  BlockOptions blocks() const override { return blocks_; }

  absl::StatusOr<std::optional<Queued>> Enqueue(AppendPlan& plan, Note note, bool may_wait) override {
    const AppendFacts facts = FactsOf(plan);
    std::optional<size_t> place = finder_->KnownPlaceOf(facts);
    if (!place && !may_wait) return std::optional<Queued>();
    if (!place) {
      const auto found = finder_->PlaceOf(facts);
      if (absl::IsCancelled(found.status())) return found.status();
      if (!found.ok()) {  // Trouble of the service is told by the outcome.
        const auto failed = EnqueueFailed(std::move(plan), found.status(), std::move(note));
        if (!failed.ok()) return failed.status();
        return std::optional(Queued{*failed});
      }
      place = *found;
    }
    auto queued = WithPart(
        *place, [&](PlanAppender& part) { return part.Enqueue(plan, Numbered(*place, std::move(note)), may_wait); });
    if (queued.ok() && *queued) (*queued)->sequence = Number(*place, (*queued)->sequence);
    return queued;
  }

  absl::StatusOr<uint64_t> EnqueueFailed(AppendPlan plan, const absl::Status& why, Note note) override {
    const size_t place = finder_->members().FirstGone();
    const auto sequence = WithPart(place, [&](PlanAppender& part) {
      return part.EnqueueFailed(std::move(plan), why, Numbered(place, std::move(note)));
    });
    if (!sequence.ok()) return sequence.status();
    return Number(place, *sequence);
  }

  absl::Status SettleUpTo(uint64_t sequence, std::chrono::milliseconds timeout) override {
    PlanAppender* part = PartIfAny(sequence % runs_.size());
    return part == nullptr ? absl::OkStatus() : part->SettleUpTo(sequence / runs_.size(), timeout);
  }

  absl::Status Flush(std::chrono::milliseconds timeout, AppendFailures* failures) override {
    return OfAll(timeout, failures, [](Appender& part, std::chrono::milliseconds left, AppendFailures* of_part) {
      return part.Flush(left, of_part);
    });
  }

  absl::StatusOr<std::optional<AppendTrouble>> Settle(absl::string_view sample, std::optional<int64_t> attempt,
                                                      std::chrono::milliseconds timeout) override {
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
    std::optional<AppendTrouble> trouble;
    for (size_t member = 0; member < runs_.size(); ++member) {
      PlanAppender* part = PartIfAny(member);
      if (part == nullptr) continue;
      auto of_part = part->Settle(sample, attempt, TimeLeft(deadline));
      if (!of_part.ok()) return of_part.status();
      trouble = Worse(std::move(trouble), *std::move(of_part));
    }
    return trouble;
  }

  absl::Status Close(std::chrono::milliseconds timeout, AppendFailures* failures) override {
    {
      MutexLock lock(mutex_);
      closed_ = true;
    }
    return OfAll(timeout, failures, [](Appender& part, std::chrono::milliseconds left, AppendFailures* of_part) {
      return part.Close(left, of_part);
    });
  }

  AppenderMetrics metrics() const override {
    AppenderMetrics total;
    {
      MutexLock lock(mutex_);
      total = refused_;
    }
    for (size_t member = 0; member < runs_.size(); ++member) {
      if (const Appender* part = PartIfAny(member)) AddTo(part->metrics(), total);
    }
    return total;
  }

  void CountRefusal(Reason reason) override {
    MutexLock lock(mutex_);
    ++refused_.refused_appends;
    ++refused_.refused_by_reason[reason];
  }

 private:
  static std::chrono::milliseconds TimeLeft(Clock::Time deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::Real().Now());
    return std::max(left, std::chrono::milliseconds(0));
  }

  // What `call` says of all parts, one after the other: the first error names its server.
  template <typename Call>
  absl::Status OfAll(std::chrono::milliseconds timeout, AppendFailures* failures, const Call& call) {
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
    if (failures != nullptr) *failures = {};
    absl::Status first;
    for (size_t member = 0; member < runs_.size(); ++member) {
      PlanAppender* part = PartIfAny(member);
      if (part == nullptr) continue;
      AppendFailures of_part;
      const absl::Status status = call(*part, TimeLeft(deadline), &of_part);
      for (AppendOutcome& outcome : of_part.failures) outcome.sequence = Number(member, outcome.sequence);
      if (failures != nullptr) AddTo(std::move(of_part), *failures);
      first.Update(WithServer(status, finder_->members()[member].endpoint()));
    }
    return first;
  }

  uint64_t Number(size_t member, uint64_t own) const { return own * runs_.size() + member; }

  Note Numbered(size_t member, Note note) const {
    if (!note) return nullptr;
    return [this, member, note = std::move(note)](AppendOutcome outcome) {
      outcome.sequence = Number(member, outcome.sequence);
      note(outcome);
    };
  }

  AppenderOptions OptionsOf(size_t member) {
    AppenderOptions options = options_;
    if (options_.on_outcome) {
      options.on_outcome = Numbered(member, [this](const AppendOutcome& outcome) {
        MutexLock lock(telling_);
        options_.on_outcome(outcome);
      });
    }
    if (options_.on_outcomes) {
      options.on_outcomes = [this, member](std::vector<AppendOutcome> outcomes, std::function<void()> seen) {
        for (AppendOutcome& outcome : outcomes) outcome.sequence = Number(member, outcome.sequence);
        MutexLock lock(telling_);
        options_.on_outcomes(std::move(outcomes), std::move(seen));
      };
    }
    return options;
  }

  // What `call` says of the part of a member, which is made where there is none.
  template <typename Call>
  std::invoke_result_t<Call, PlanAppender&> WithPart(size_t member, const Call& call) {
    PlanAppender* part = nullptr;
    {
      MutexLock lock(mutex_);
      if (closed_) return absl::CancelledError("the appender is closed");
      if (!parts_[member]) parts_[member] = runs_[member]->NewAppender(OptionsOf(member));
      part = &PlanAppender::Of(*parts_[member]);
    }
    return call(*part);
  }
  PlanAppender* PartIfAny(size_t member) const {
    MutexLock lock(mutex_);
    return parts_[member] ? &PlanAppender::Of(*parts_[member]) : nullptr;
  }

  const std::shared_ptr<Finder> finder_;
  const std::vector<std::shared_ptr<Run>> runs_;
  const BlockOptions blocks_;
  AppenderOptions options_;
  Mutex telling_;
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  AppenderMetrics refused_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Appender>> parts_ ABSL_GUARDED_BY(mutex_);  // What is there stays.
};

}  // namespace

std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<Finder> finder, std::vector<std::shared_ptr<Run>> runs,
                                              const BlockOptions& blocks, AppenderOptions options) {
  return std::make_unique<ShardedAppender>(std::move(finder), std::move(runs), blocks, std::move(options));
}

}  // namespace routing_replay::client
