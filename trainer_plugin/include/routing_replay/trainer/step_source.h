// A source of rows through which a rank reads every slice of a step once, although several passes need it.
//
//   StepSource source(int64_t{1} << 30, [&](const ReplayPlan& plan, absl::Span<const int32_t> slices,
//                                           absl::Span<const FetchSequence> sequences, const FetchOptions& options) {
//     return FetchSlices(*run, plan, slices, sequences, options);  // Or Fetch of a LocalSource or DirectorySource.
//   });
//   absl::StatusOr<StagedRows> staged = source.Fetch(plan, sequences, options);
#ifndef ROUTING_REPLAY_TRAINER_STEP_SOURCE_H_
#define ROUTING_REPLAY_TRAINER_STEP_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/staging.h"

namespace routing_replay::trainer {

class StepCache;

// What a fetch is for. Ahead: nobody waits for its rows yet; it takes no room from rows that are still awaited, and
// what cannot be read at once is left to the fetch that needs it.
enum class FetchTime : uint8_t { kNow, kAheadInStep, kAheadOfStep };

struct StepCacheCounters {
  int64_t hits = 0;        // Slices that a fetch for now found, or that another fetch was reading.
  int64_t misses = 0;      // Slices that it had to read itself.
  int64_t ahead = 0;       // Slices read ahead.
  int64_t stale = 0;       // Kept slices that were not used, as the ranks had agreed on another content id.
  int64_t evictions = 0;   // To make room.
  int64_t not_kept = 0;    // There was no room.
  int64_t bytes = 0;       // Held now.
  int64_t most_bytes = 0;  // Held at any time.
  int64_t slices = 0;      // Held now.
  int64_t bytes_read = 0;  // Of slices that were read.
};

// Keeps at most `cache_bytes` of slices of one source, whose samples are taken to stay what they are within a step.
// Samples that fall back are not kept, but asked for again. Thread-safe as far as `read` is.
class StepSource {
 public:
  // Reads these positions in plan.slices, none of a sequence that is live, as FetchSlices does.
  using Read =
      std::function<absl::StatusOr<StagedRows>(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                               absl::Span<const FetchSequence> sequences, const FetchOptions& options)>;

  StepSource(int64_t cache_bytes, Read read);
  ~StepSource();
  StepSource(const StepSource&) = delete;
  StepSource& operator=(const StepSource&) = delete;

  // As FetchSlices, options.timeout being for what other fetches read, too. What has not come then is kNotReady and
  // falls back under kLive and kDrop; DEADLINE_EXCEEDED under kStrict. CANCELLED after Stop. Errors of `read`.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                   const FetchOptions& options);
  // Reads what a Fetch in this step, or in the next one, will need; for threads of the caller's own. Waits for room,
  // but for no rows that are not committed yet, and refuses no sample. INVALID_ARGUMENT (kField) if `time` is kNow;
  // DEADLINE_EXCEEDED where no room was made in time, CANCELLED after Stop, errors of `read`.
  absl::Status ReadAhead(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences, const FetchOptions& options,
                         FetchTime time);

  // Drops what was not read ahead for the next step, which begins.
  void EndStep();
  // Whoever waits, and whoever will, gets CANCELLED.
  void Stop();
  StepCacheCounters counters() const;

 private:
  absl::StatusOr<StagedRows> Through(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                     const FetchOptions& options, FetchTime time);

  const std::shared_ptr<StepCache> cache_;
  const Read read_;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_STEP_SOURCE_H_
