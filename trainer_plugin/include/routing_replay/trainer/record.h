// Record: what a layer's router chose itself → compact ids, as an index buffer holds them (R2, and what replay is
// compared with).
//
// Slot order is kept: the last bits of a renormalised row depend on it. Everything here is pure and thread-safe;
// nothing is written when a status is not OK.
#ifndef ROUTING_REPLAY_TRAINER_RECORD_H_
#define ROUTING_REPLAY_TRAINER_RECORD_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/bf16.h"
#include "routing_replay/trainer/fp16.h"
#include "routing_replay/trainer/router_config.h"

namespace routing_replay::trainer {

// The live choice of N rows, that of router.h for unrecorded rows. logits [N][E]; expert_bias [E] or empty; indices:
// bytes of [N][K] compact ids. D as in router.h.
// INVALID_ARGUMENT as CheckRouterConfig, and (kShape, naming the tensor) unless every size fits N = logits.size() / E.
template <typename D = float>
absl::Status RecordLive(const RouterConfig& config, absl::Span<const D> logits, absl::Span<const float> expert_bias,
                        absl::Span<uint8_t> indices);

// Ids [N][K] that a router wrote down (Megatron-Core's RouterReplay: recorded_topk_idx, int64; its static buffers have
// any integer type). Id: int64_t, int32_t, int16_t or uint8_t. Only E and K of the configuration matter. Ids outside
// [0, E) are clamped and added to `clamped_ids`. INVALID_ARGUMENT (kShape) unless both have N = ids.size() / K rows.
template <typename Id>
absl::Status RecordIds(const RouterConfig& config, absl::Span<const Id> ids, absl::Span<uint8_t> indices,
                       int64_t& clamped_ids);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_RECORD_H_
