#include "routing_replay/trainer/router.h"
#include "trainer_plugin/replay/router_check.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {
namespace {

template <typename Math, typename D>
void Forward(const RouterConfig& config, const RouterForwardInput<D>& input, const RouterForwardOutput<D>& output,
             RouterCounters& counters) {
  const RouterForwardTensors<D> tensors{
      .id_bytes = IdBytes(config),
      .logits = input.logits.data(),
      .indices = input.indices.data(),
      .states = input.states.data(),
      .expert_bias = input.expert_bias.empty() ? nullptr : input.expert_bias.data(),
      .probs = output.probs.data(),
      .routing_map = output.routing_map.data(),
      .compact_probs = output.compact_probs.empty() ? nullptr : output.compact_probs.data(),
      .chosen = output.chosen.empty() ? nullptr : output.chosen.data()};
  for (size_t row = 0; row < input.states.size(); ++row) {
    ++RowsOfState(counters, input.states[row]);
    const SlotCounts counts = ForwardRow<Math>(OneLane(), config, tensors, static_cast<int64_t>(row));
    counters.clamped_ids += counts.clamped_ids;
    counters.zero_probabilities += counts.zero_probabilities;
  }
}

}  // namespace

template <typename D>
absl::Status RouterReplayForward(const RouterConfig& config, const RouterForwardInput<D>& input,
                                 const RouterForwardOutput<D>& output, RouterCounters& counters) {
  const ForwardSizes sizes{.states = input.states.size(),
                           .logits = input.logits.size(),
                           .indices = input.indices.size(),
                           .expert_bias = input.expert_bias.size(),
                           .probs = output.probs.size(),
                           .routing_map = output.routing_map.size(),
                           .compact_probs = output.compact_probs.size(),
                           .chosen = output.chosen.size()};
  if (auto s = CheckForward(config, sizes); !s.ok()) return s;
  WithArithmetic<D>(config.rounding, [&](auto math) { Forward<decltype(math)>(config, input, output, counters); });
  return absl::OkStatus();
}

template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<float>&,
                                          const RouterForwardOutput<float>&, RouterCounters&);
template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<double>&,
                                          const RouterForwardOutput<double>&, RouterCounters&);
template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<Bf16>&,
                                          const RouterForwardOutput<Bf16>&, RouterCounters&);
template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<Fp16>&,
                                          const RouterForwardOutput<Fp16>&, RouterCounters&);

}  // namespace routing_replay::trainer
