// Shape checks that every router implementation makes before it touches memory.
#ifndef TRAINER_PLUGIN_REPLAY_ROUTER_CHECK_H_
#define TRAINER_PLUGIN_REPLAY_ROUTER_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "routing_replay/trainer/router.h"

namespace routing_replay::trainer {

// Bytes of one compact id.
int32_t IdBytes(const RouterConfig& config);

// INVALID_ARGUMENT as router.h says. Reads sizes only.
absl::Status CheckForward(const RouterConfig& config, const RouterForwardInput& input,
                          const RouterForwardOutput& output);
absl::Status CheckBackward(const RouterConfig& config, const RouterBackwardInput& input,
                           absl::Span<const float> grad_logits);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_REPLAY_ROUTER_CHECK_H_
