#include "routing_replay/trainer/router.h"
#include "trainer_plugin/replay/router_check.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {
namespace {

template <typename Math, typename D>
void Backward(const RouterConfig& config, const RouterBackwardInput<D>& input, absl::Span<D> grad_logits,
              RouterCounters& counters) {
  const RouterBackwardTensors<D> tensors{.id_bytes = IdBytes(config),
                                         .logits = input.logits.data(),
                                         .chosen = input.chosen.data(),
                                         .grad_probs = input.grad_probs.data(),
                                         .grad_logits = grad_logits.data()};
  const int64_t rows = static_cast<int64_t>(input.logits.size()) / config.num_experts;
  for (int64_t row = 0; row < rows; ++row) {
    counters.clamped_ids += BackwardRow<Math>(OneLane(), config, tensors, row).clamped_ids;
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
template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<Fp16>&, absl::Span<Fp16>,
                                           RouterCounters&);

}  // namespace routing_replay::trainer
