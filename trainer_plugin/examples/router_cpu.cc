#include "routing_replay/trainer/router.h"

#include "router.h"

using namespace routing_replay::trainer;

absl::StatusOr<RouterOutput> RunRouter(const RouterInput& input) {
  RouterOutput out(input);
  absl::Status status = RouterReplayForward<float>(
      input.config, {.logits = input.logits, .indices = input.indices, .states = input.states},
      {.probs = absl::MakeSpan(out.probs),
       .routing_map = absl::MakeSpan(out.routing_map),
       .chosen = absl::MakeSpan(out.chosen)},
      out.counters);
  status.Update(RouterReplayBackward<float>(
      input.config, {.logits = input.logits, .chosen = out.chosen, .grad_probs = input.grad_probs},
      absl::MakeSpan(out.grad_logits), out.counters));
  if (!status.ok()) return status;
  return out;
}
