#include "routing_replay/trainer/step_source.h"

#include <algorithm>
#include <utility>

#include "proto/wire/clock.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/fetch/staging_sink.h"
#include "trainer_plugin/fetch/step_cache.h"

namespace routing_replay::trainer {

StepSource::StepSource(int64_t cache_bytes, Read read)
    : cache_(std::make_shared<StepCache>(cache_bytes)), read_(std::move(read)) {}
StepSource::~StepSource() = default;

absl::StatusOr<StagedRows> StepSource::Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                             const FetchOptions& options) {
  return Through(plan, sequences, options, FetchTime::kNow);
}

absl::Status StepSource::ReadAhead(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                   const FetchOptions& options, FetchTime time) {
  if (time == FetchTime::kNow) return Invalid("time", "is not ahead");
  return Through(plan, sequences, options, time).status();
}

absl::StatusOr<StagedRows> StepSource::Through(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                               const FetchOptions& options, FetchTime time) {
  if (absl::Status status = CheckSequences(plan, sequences); !status.ok()) return status;
  const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), options.timeout);
  CachedFetch fetch(cache_, plan, sequences, options, "", time);
  while (true) {
    const auto slices = fetch.Next(deadline);
    const bool falls_back = time == FetchTime::kNow && options.missing != MissingPolicy::kStrict;
    if (falls_back && absl::IsDeadlineExceeded(slices.status())) return fetch.Take(slices.status().message());
    if (!slices.ok()) return slices.status();
    if (slices->empty()) return fetch.Take("");
    FetchOptions left = fetch.read_options();
    left.timeout = std::max(std::chrono::milliseconds(0),
                            std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::Real().Now()));
    const auto staged = read_(plan, *slices, sequences, left);
    if (!staged.ok()) return staged.status();
    fetch.Give(*staged);
  }
}

void StepSource::EndStep() { cache_->EndStep(); }
void StepSource::Stop() { cache_->Stop(); }
StepCacheCounters StepSource::counters() const { return cache_->counters(); }

}  // namespace routing_replay::trainer
