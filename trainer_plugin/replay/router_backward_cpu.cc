#include "routing_replay/trainer/router.h"
#include "trainer_plugin/replay/router_check.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {
namespace {

template <typename Math, typename D>
void Backward(const RouterConfig& config, const RouterBackwardInput<D>& input, absl::Span<D> grad_logits,
              RouterCounters& counters) {
  const int64_t experts = config.num_experts;
  const int64_t rows = static_cast<int64_t>(input.logits.size()) / experts;
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t ids[kMaxSlots];
    counters.clamped_ids += LoadRowIds(config, input.chosen.data(), IdBytes(config), row, ids);
    BackwardRow<Math>(config, input.logits.data() + row * experts, ids, input.grad_probs.data() + row * experts,
                      grad_logits.data() + row * experts);
  }
}

}  // namespace

template <typename D>
absl::Status RouterReplayBackward(const RouterConfig& config, const RouterBackwardInput<D>& input,
                                  absl::Span<D> grad_logits, RouterCounters& counters) {
  const BackwardSizes sizes{.logits = input.logits.size(),
                            .chosen = input.chosen.size(),
                            .grad_probs = input.grad_probs.size(),
                            .grad_logits = grad_logits.size()};
  if (auto s = CheckBackward(config, sizes); !s.ok()) return s;
  WithArithmetic<D>(config.rounding,
                    [&](auto math) { Backward<decltype(math)>(config, input, grad_logits, counters); });
  return absl::OkStatus();
}

template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<float>&, absl::Span<float>,
                                           RouterCounters&);
template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<double>&, absl::Span<double>,
                                           RouterCounters&);
template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<Bf16>&, absl::Span<Bf16>,
                                           RouterCounters&);

}  // namespace routing_replay::trainer
