// Shape checks that every router implementation makes before it touches memory.
#ifndef TRAINER_PLUGIN_REPLAY_ROUTER_CHECK_H_
#define TRAINER_PLUGIN_REPLAY_ROUTER_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "routing_replay/trainer/router.h"

namespace routing_replay::trainer {

// Bytes of one compact id.
int32_t IdBytes(const RouterConfig& config);

// Numbers of elements (of bytes where router.h counts bytes).
struct ForwardSizes {
  uint64_t states = 0, logits = 0, indices = 0, expert_bias = 0;
  uint64_t probs = 0, routing_map = 0, compact_probs = 0, chosen = 0;
};
struct BackwardSizes {
  uint64_t logits = 0, chosen = 0, grad_probs = 0, grad_logits = 0;
};
struct RecordSizes {
  uint64_t logits = 0, expert_bias = 0, indices = 0;
};
struct CompareSizes {
  uint64_t states = 0, replayed = 0, live = 0;
};
struct CompareLiveSizes {
  uint64_t states = 0, replayed = 0, logits = 0, expert_bias = 0;
};

// INVALID_ARGUMENT as router.h, record.h and compare.h say.
absl::Status CheckForward(const RouterConfig& config, const ForwardSizes& sizes);
absl::Status CheckBackward(const RouterConfig& config, const BackwardSizes& sizes);
absl::Status CheckRecord(const RouterConfig& config, const RecordSizes& sizes);
absl::Status CheckRecordedIds(const RouterConfig& config, uint64_t ids, uint64_t indices);
absl::Status CheckCompare(const RouterConfig& config, const CompareSizes& sizes);
absl::Status CheckCompareLive(const RouterConfig& config, const CompareLiveSizes& sizes);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_ROUTER_CHECK_H_
