// A realign plan in one block of bytes without pointers, to be copied to a device next to the staged bytes.
//
//   plan ─PackPlan─▶ bytes ─copy─▶ device ─LaunchRealign (replay_cuda.h)─▶ index buffers of all local layers, row
//   states
//
// The work is cut into units, each for one warp: up to 1024 ids of one layer that lie next to each other here and
// there, up to 32 rows of filler of one layer, or up to 1024 row states. Its bytes are 24 for every 1024 ids copied
// where rows follow one another in runs.
#ifndef ROUTING_REPLAY_TRAINER_PACKED_PLAN_H_
#define ROUTING_REPLAY_TRAINER_PACKED_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/buffer_layout.h"
#include "routing_replay/trainer/realign.h"

namespace routing_replay::trainer {

// What the base of a packed plan must have.
inline constexpr int64_t kPackedPlanAlignment = 16;

struct PackedPlanSize {
  int64_t bytes = 0;
  int64_t units = 0;
};

// `plan` must come from PlanRealign with this layout.
PackedPlanSize SizeOfPackedPlan(const BufferLayout& layout, const RealignPlan& plan);

// Writes the packed plan to the first bytes of `out` (on a multiple of kPackedPlanAlignment), which may be longer: a
// buffer at a fixed address, for a captured graph, has room for the largest plan. INVALID_ARGUMENT (kLength) if it is
// too short or not aligned, nothing written.
absl::Status PackPlan(const BufferLayout& layout, const RealignPlan& plan, absl::Span<uint8_t> out);

// Carries a packed plan out on the CPU: what a device does with it. Buffers as those of Realign.
void RealignPacked(const uint8_t* packed, const uint8_t* staging, uint8_t* indices, RowState* states);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_PACKED_PLAN_H_
