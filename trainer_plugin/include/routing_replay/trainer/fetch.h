// Fetch: the slices of a replay plan, from the service into one staging buffer, in storage encoding.
//
//   plan ─FetchSlices─▶ StagedRows ─PlanRealign, Realign─▶ index buffer and row states
#ifndef ROUTING_REPLAY_TRAINER_FETCH_H_
#define ROUTING_REPLAY_TRAINER_FETCH_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/client.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/realign.h"

namespace routing_replay::trainer {

// What happens to a sequence whose sample cannot be replayed. All ranks of a model replica must use the same.
enum class MissingPolicy : uint8_t {
  kStrict,  // The fetch fails: FAILED_PRECONDITION naming the sample and its status.
  kLive,    // The whole sequence is unrecorded: its rows take live routing. Counted in StagedRows.
};

struct FetchOptions {
  Producer producer = Producer::kRollout;
  MissingPolicy missing = MissingPolicy::kStrict;
  bool wait = true;  // For rows that are not committed yet, until `timeout`.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
};

// One sequence of the micro-batch.
struct FetchSequence {
  std::string sample;
  std::optional<int64_t> num_tokens;     // Expected T; another one counts as missing.
  std::vector<TokenCheck> token_checks;  // Expected; another one counts as missing.
};

struct StagedRows {
  std::vector<uint8_t> staging;
  std::vector<StagedPiece> pieces;    // layer_begin counts in plan.layers.
  std::vector<SampleRecord> records;  // One per plan slice, in its order.
  // Per sequence of the micro-batch: rows without a route (normal lists), all rows where it falls back. What
  // RealignInput::unrecorded takes.
  std::vector<std::vector<RowRange>> unrecorded;
  int64_t fallback_sequences = 0;
};

// Reads what plan.slices names. `sequences` has one entry per sequence of the plan's micro-batch. Blocks. Errors:
// INVALID_ARGUMENT (kField) if the plan reads a sequence that `sequences` lacks, those of Run::Read, and under kStrict
// FAILED_PRECONDITION whose detail names the first sample that cannot be replayed.
absl::StatusOr<StagedRows> FetchSlices(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                       const FetchOptions& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_FETCH_H_
