#include "routing_replay/trainer/router.h"
#include "trainer_plugin/replay/router_check.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {

absl::Status RouterReplayBackward(const RouterConfig& config, const RouterBackwardInput& input,
                                  absl::Span<float> grad_logits, RouterCounters& counters) {
  if (auto s = CheckBackward(config, input, grad_logits); !s.ok()) return s;
  const int64_t experts = config.num_experts;
  const int64_t rows = static_cast<int64_t>(input.logits.size()) / experts;
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t ids[kMaxSlots];
    counters.clamped_ids += LoadRowIds(config, input.chosen.data(), IdBytes(config), row, ids);
    BackwardRow(config, input.logits.data() + row * experts, ids, input.grad_probs.data() + row * experts,
                grad_logits.data() + row * experts);
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::trainer
