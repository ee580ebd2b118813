// Compare: the replayed choice beside the live one, for metrics and alarms.
//
// Rows are compared as sets: the order of slots means nothing here, as torch.topk's depends on whether gradients are
// wanted. Only kReplayed rows count. Everything here is pure and thread-safe; nothing is written when a status is not
// OK.
#ifndef ROUTING_REPLAY_TRAINER_COMPARE_H_
#define ROUTING_REPLAY_TRAINER_COMPARE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/bf16.h"
#include "routing_replay/trainer/compare_counters.h"
#include "routing_replay/trainer/fp16.h"
#include "routing_replay/trainer/router_config.h"
#include "routing_replay/trainer/row_map.h"

namespace routing_replay::trainer {

// Two choices of N = states.size() rows of one layer, bytes of [N][K] compact ids each. Only E and K of the
// configuration matter; ids are not checked, and one that stands twice in a row counts once.
// INVALID_ARGUMENT as CheckRouterConfig, and (kShape, naming the tensor) unless the sizes fit.
absl::Status CompareChoices(const RouterConfig& config, absl::Span<const uint8_t> replayed,
                            absl::Span<const uint8_t> live, absl::Span<const RowState> states,
                            CompareCounters& counters);

// The same against the live choice of these logits, [N][E], with expert_bias, [E] or empty: RecordLive and
// CompareChoices in one, with nothing in between. D as in router.h.
template <typename D = float>
absl::Status CompareWithLive(const RouterConfig& config, absl::Span<const D> logits,
                             absl::Span<const float> expert_bias, absl::Span<const uint8_t> replayed,
                             absl::Span<const RowState> states, CompareCounters& counters);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_COMPARE_H_
