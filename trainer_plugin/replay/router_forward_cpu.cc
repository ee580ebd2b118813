#include <algorithm>

#include "routing_replay/trainer/router.h"
#include "trainer_plugin/replay/router_check.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {
namespace {

// The ids that row `row` uses, counted by kind.
template <typename Math, typename D>
void FindRowIds(const RouterConfig& config, const RouterForwardInput<D>& input, int64_t row, uint16_t* ids,
                RouterCounters& counters) {
  const RowState state = input.states[row];
  if (state == RowState::kUnrecorded) {
    ++counters.live_rows;
    const float* bias = input.expert_bias.empty() ? nullptr : input.expert_bias.data();
    ChooseLive<Math>(config, input.logits.data() + row * config.num_experts, bias, ids);
    return;
  }
  ++(state == RowState::kPad ? counters.pad_rows : counters.replayed_rows);
  counters.clamped_ids += LoadRowIds(config, input.indices.data(), IdBytes(config), row, ids);
}

template <typename D>
void WriteRow(const RouterConfig& config, int64_t row, const uint16_t* ids, const D* p,
              const RouterForwardOutput<D>& output) {
  D* probs = output.probs.data() + row * config.num_experts;
  uint8_t* map = output.routing_map.data() + row * config.num_experts;
  std::fill_n(probs, config.num_experts, D());
  std::fill_n(map, config.num_experts, uint8_t{0});
  for (int32_t k = 0; k < config.top_k; ++k) {
    probs[ids[k]] = p[k];
    map[ids[k]] = 1;
  }
  if (!output.compact_probs.empty()) std::copy_n(p, config.top_k, output.compact_probs.data() + row * config.top_k);
  if (output.chosen.empty()) return;
  for (int32_t k = 0; k < config.top_k; ++k) {
    StoreId(output.chosen.data(), IdBytes(config), row * config.top_k + k, ids[k]);
  }
}

template <typename Math, typename D>
void Forward(const RouterConfig& config, const RouterForwardInput<D>& input, const RouterForwardOutput<D>& output,
             RouterCounters& counters) {
  const int64_t rows = static_cast<int64_t>(input.states.size());
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t ids[kMaxSlots];
    typename Math::Real p[kMaxSlots];
    D probs[kMaxSlots];
    FindRowIds<Math>(config, input, row, ids, counters);
    ForwardRow<Math>(config, input.logits.data() + row * config.num_experts, ids, p);
    for (int32_t k = 0; k < config.top_k; ++k) {
      probs[k] = static_cast<D>(p[k]);
      const bool lost = input.states[row] == RowState::kReplayed && static_cast<typename Math::Real>(probs[k]) == 0;
      counters.zero_probabilities += lost;
    }
    WriteRow(config, row, ids, probs, output);
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

}  // namespace routing_replay::trainer
