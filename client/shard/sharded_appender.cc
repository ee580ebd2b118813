#include "client/shard/sharded_appender.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {
namespace {

void Add(const AppenderMetrics& part, AppenderMetrics& total) {
  static constexpr int64_t AppenderMetrics::*kCounters[] = {
      &AppenderMetrics::appends,          &AppenderMetrics::acknowledged,
      &AppenderMetrics::failed,           &AppenderMetrics::rows,
      &AppenderMetrics::trimmed_rows,     &AppenderMetrics::conflicting_rows,
      &AppenderMetrics::unrecorded_rows,  &AppenderMetrics::payload_bytes,
      &AppenderMetrics::resent_bytes,     &AppenderMetrics::reconnects,
      &AppenderMetrics::credit_refusals,  &AppenderMetrics::dropped_appends,
      &AppenderMetrics::dropped_rows,     &AppenderMetrics::refused_appends,
      &AppenderMetrics::narrowed_appends, &AppenderMetrics::unrecorded_appends,
      &AppenderMetrics::surplus_rows,
  };
  for (const auto counter : kCounters) total.*counter += part.*counter;
  for (const auto& [reason, count] : part.refused_by_reason) total.refused_by_reason[reason] += count;
}

void Add(AppendFailures part, AppendFailures& total) {
  total.failed_samples.merge(part.failed_samples);
  std::move(part.failures.begin(), part.failures.end(), std::back_inserter(total.failures));
  total.appends += part.appends;
}

class ShardedAppender final : public Appender {
 public:
  ShardedAppender(std::shared_ptr<Finder> finder, std::vector<std::shared_ptr<Run>> runs, AppenderOptions options)
      : finder_(std::move(finder)), runs_(std::move(runs)), options_(std::move(options)), parts_(runs_.size()) {
    options_.max_queued_bytes = std::max<int64_t>(1, options_.max_queued_bytes / static_cast<int64_t>(runs_.size()));
    if (!options_.on_outcome) return;
    options_.on_outcome = [this, tell = std::move(options_.on_outcome)](const AppendOutcome& outcome) {
      MutexLock lock(telling_);
      tell(outcome);
    };
  }

  absl::Status Append(const AppendOptions& options, const TensorDescription& tensor,
                      absl::Span<const uint8_t> payload) override {
    const auto place = finder_->PlaceOf(options, 1);
    return place.ok() ? Part(*place).Append(options, tensor, payload) : place.status();
  }

  absl::Status AppendUnrecorded(const AppendOptions& options, int64_t rows) override {
    const auto place = finder_->PlaceOf(options, rows);
    return place.ok() ? Part(*place).AppendUnrecorded(options, rows) : place.status();
  }

  absl::Status Flush(std::chrono::milliseconds timeout, AppendFailures* failures) override {
    const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
    if (failures != nullptr) *failures = {};
    absl::Status first;
    for (size_t member = 0; member < runs_.size(); ++member) {
      Appender* part = PartIfAny(member);
      if (part == nullptr) continue;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::Real().Now());
      AppendFailures of_part;
      const absl::Status status = part->Flush(std::max(left, std::chrono::milliseconds(0)), &of_part);
      if (failures != nullptr) Add(std::move(of_part), *failures);
      first.Update(WithServer(status, finder_->members()[member].endpoint()));
    }
    return first;
  }

  AppenderMetrics metrics() const override {
    AppenderMetrics total;
    for (size_t member = 0; member < runs_.size(); ++member) {
      if (const Appender* part = PartIfAny(member)) Add(part->metrics(), total);
    }
    return total;
  }

 private:
  Appender& Part(size_t member) {
    MutexLock lock(mutex_);
    if (!parts_[member]) parts_[member] = runs_[member]->NewAppender(options_);
    return *parts_[member];
  }
  Appender* PartIfAny(size_t member) const {
    MutexLock lock(mutex_);
    return parts_[member].get();
  }

  const std::shared_ptr<Finder> finder_;
  const std::vector<std::shared_ptr<Run>> runs_;
  AppenderOptions options_;
  Mutex telling_;
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Appender>> parts_ ABSL_GUARDED_BY(mutex_);  // What is there stays.
};

}  // namespace

std::unique_ptr<Appender> MakeShardedAppender(std::shared_ptr<Finder> finder, std::vector<std::shared_ptr<Run>> runs,
                                              AppenderOptions options) {
  return std::make_unique<ShardedAppender>(std::move(finder), std::move(runs), std::move(options));
}

}  // namespace routing_replay::client
