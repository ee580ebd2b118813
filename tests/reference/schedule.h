// The order in which a pipeline rank runs the forward and backward passes of its model chunks.
//
// The rules are those of Megatron-Core (megatron/core/pipeline_parallel/schedules.py). A *pass* is one micro-batch
// through one chunk; a chunk is one virtual stage of the rank. All functions are pure.
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

// The order of forward passes, with micro_batches · chunks entries (get_schedule_table). Micro-batches form groups of
// `group_size`; the last group may be smaller. All micro-batches of a group go through chunk 0, then all go through
// chunk 1, and so on. Backward passes have the same order with the chunks reversed. Within a chunk, micro-batches
// ascend.
// INVALID_ARGUMENT (kField) for sizes below 1 and for more than kMaxPasses entries.
absl::StatusOr<std::vector<MicroBatchChunk>> ScheduleTable(int32_t micro_batches, int32_t chunks, int32_t group_size);

// One call of Megatron's forward_backward_func on one pipeline rank.
struct PipelineSchedule {
  int32_t pipeline_size = 1;  // P (pipeline_model_parallel_size)
  int32_t pp_rank = 0;        // p
  // V (virtual_pipeline_model_parallel_size). If set, even to 1, the schedule is interleaved; if not, 1F1B.
  std::optional<int32_t> virtual_stages;
  int32_t micro_batches = 1;
  // Number of micro-batches that go through a virtual stage before the next stage begins
  // (microbatch_group_size_per_vp_stage); P if not set, as in Megatron. Ignored without virtual stages.
  std::optional<int32_t> group_size;
  bool forward_only = false;
  // Runs one more forward pass before the steady state, so that the two passes of a step do not depend on each other
  // (overlap_moe_expert_parallel_comm). With P > 1 it requires virtual stages.
  bool overlap_expert_communication = false;
  // Whether MoE layers run again in the backward pass, just before their gradients (recompute_granularity full, or
  // recompute_modules with moe or mlp).
  bool recompute = false;
};

// How many forward passes a rank runs in total, how many of them before the first backward pass (warm-up), and how many
// alternate with backward passes after that (remaining).
struct PassCounts {
  int64_t total = 0;
  int64_t warmup = 0;
  int64_t remaining = 0;       // total - warmup
  bool all_in_warmup = false;  // No forward pass alternates with a backward pass.
  friend bool operator==(const PassCounts&, const PassCounts&) = default;
};

// Counts passes as get_pp_rank_microbatches does. The warm-up of rank p of P has
//   without virtual stages: P - p - 1 passes
//   with virtual stages: 2 (P - p - 1) + (V - 1) · group_size passes, and one more with overlap
// but never more than all passes. If forward-only, all passes are warm-up.
//
// INVALID_ARGUMENT (kField) for sizes below 1, a rank outside the pipeline and more than kMaxPasses passes.
absl::StatusOr<PassCounts> CountPasses(const PipelineSchedule& schedule);

enum class PassKind : uint8_t {
  kForward = 0,
  kRecompute = 1,  // The forward code, run again inside the backward pass.
  kBackward = 2,
};

struct Pass {
  PassKind kind = PassKind::kForward;
  int32_t micro_batch = 0;
  int32_t chunk = 0;
  friend bool operator==(const Pass&, const Pass&) = default;
};

// All passes of the rank in order: warm-up, then pairs of one forward and one backward pass, then the remaining
// backward passes (forward_backward_no_pipelining, forward_backward_pipelining_without_interleaving and
// forward_backward_pipelining_with_interleaving). With overlap, the two passes of a pair run at the same time and are
// listed in the order in which they begin.
// INVALID_ARGUMENT (kField) as for CountPasses, for virtual stages or overlap that the pipeline does not support, and
// for group sizes that Megatron rejects: outside P … micro_batches, or with a last group of fewer than P.
absl::StatusOr<std::vector<Pass>> PassOrder(const PipelineSchedule& schedule);

// Returns, for each chunk, the largest number of micro-batches whose rows are needed at one time. The rows of a
// micro-batch are needed from its forward pass to its backward pass, or, if the order is forward-only, only during its
// forward pass. Requires that every chunk in `order` is in [0, chunks).
std::vector<int64_t> PeakInFlight(absl::Span<const Pass> order, int32_t chunks);

}  // namespace routing_replay::trainer

#endif  // TESTS_REFERENCE_SCHEDULE_H_
