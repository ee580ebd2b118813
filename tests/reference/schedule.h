// In which order one pipeline rank runs the forward and backward passes of its model chunks.
//
// The rules are Megatron-Core's (megatron/core/pipeline_parallel/schedules.py). A *pass* is one micro-batch through one
// chunk, which is one virtual stage of the rank. Everything here is pure.
#ifndef TESTS_REFERENCE_SCHEDULE_H_
#define TESTS_REFERENCE_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay::trainer {

// Passes of one direction: micro-batches x chunks.
inline constexpr int64_t kMaxPasses = int64_t{1} << 22;

struct MicroBatchChunk {
  int32_t micro_batch = 0;
  int32_t chunk = 0;  // v
  friend bool operator==(const MicroBatchChunk&, const MicroBatchChunk&) = default;
};

// The order of forward passes, micro_batches · chunks entries (get_schedule_table): micro-batches in groups of
// `group_size`, the last one as large as what is left; all of a group through chunk 0, then all of it through chunk 1,
// and so on. Backward passes take the same order with the chunks counted from the last. Within a chunk both ascend in
// micro-batch.
// INVALID_ARGUMENT (kField) for sizes below 1 and more than kMaxPasses entries.
absl::StatusOr<std::vector<MicroBatchChunk>> ScheduleTable(int32_t micro_batches, int32_t chunks, int32_t group_size);

// One call of Megatron's forward_backward_func on one pipeline rank.
struct PipelineSchedule {
  int32_t pipeline_size = 1;  // P (pipeline_model_parallel_size)
  int32_t pp_rank = 0;        // p
  // V (virtual_pipeline_model_parallel_size). Set, even to 1: the interleaved schedule. Not set: 1F1B, one chunk.
  std::optional<int32_t> virtual_stages;
  int32_t micro_batches = 1;
  // Consecutive micro-batches in a virtual stage (microbatch_group_size_per_vp_stage); not set: P, as in Megatron.
  // Means nothing without virtual stages.
  std::optional<int32_t> group_size;
  bool forward_only = false;
  // One more forward pass before the steady state, so that the two passes of a step do not depend on each other
  // (overlap_moe_expert_parallel_comm). With P > 1 it needs virtual stages.
  bool overlap_expert_communication = false;
  // MoE layers run once more in the backward pass, just before their gradients (recompute_granularity full, or
  // recompute_modules with moe or mlp).
  bool recompute = false;
};

// How many forward passes come before the first backward pass, and how many alternate with one.
struct PassCounts {
  int64_t total = 0;
  int64_t warmup = 0;
  int64_t remaining = 0;       // total - warmup
  bool all_in_warmup = false;  // No forward pass alternates with a backward pass.
  friend bool operator==(const PassCounts&, const PassCounts&) = default;
};

// get_pp_rank_microbatches: p of P ranks warms up with P - p - 1 passes without, and with 2 (P - p - 1) + (V - 1) ·
// group_size with virtual stages (one more with overlap); at most all of them, and all of them when forward-only.
// INVALID_ARGUMENT (kField) for sizes below 1, a rank outside the pipeline and more than kMaxPasses passes.
absl::StatusOr<PassCounts> CountPasses(const PipelineSchedule& schedule);

enum class PassKind : uint8_t {
  kForward = 0,
  kRecompute = 1,  // The forward code again, inside the backward pass.
  kBackward = 2,
};

struct Pass {
  PassKind kind = PassKind::kForward;
  int32_t micro_batch = 0;
  int32_t chunk = 0;
  friend bool operator==(const Pass&, const Pass&) = default;
};

// Everything that the rank runs, in order: warm-up, then one forward and one backward pass in turn, then the backward
// passes that are left (forward_backward_no_pipelining, forward_backward_pipelining_without_interleaving and
// forward_backward_pipelining_with_interleaving). With overlap the two passes of a turn run into each other: their
// order here is that in which they begin. INVALID_ARGUMENT (kField) as CountPasses, for virtual stages or overlap in a
// pipeline that has none, and for group sizes with which Megatron does not train: outside P … micro_batches, or with
// a last group of fewer than P.
absl::StatusOr<std::vector<Pass>> PassOrder(const PipelineSchedule& schedule);

// Per chunk, [chunks], the most micro-batches whose rows are needed at one time: from the forward to the backward pass,
// and in a forward-only order during the forward pass alone. Requires chunks in [0, chunks) in `order`.
std::vector<int64_t> PeakInFlight(absl::Span<const Pass> order, int32_t chunks);

}  // namespace routing_replay::trainer

#endif  // TESTS_REFERENCE_SCHEDULE_H_
