#include <algorithm>

#include "routing_replay/trainer/router.h"
#include "trainer_plugin/replay/router_check.h"
#include "trainer_plugin/replay/router_row.h"

namespace routing_replay::trainer {
namespace {

// The ids that row `row` uses, counted by kind.
void FindRowIds(const RouterConfig& config, const RouterForwardInput& input, int64_t row, uint16_t* ids,
                RouterCounters& counters) {
  const RowState state = input.states[row];
  if (state == RowState::kUnrecorded) {
    ++counters.live_rows;
    const float* bias = input.expert_bias.empty() ? nullptr : input.expert_bias.data();
    ChooseLive(config, input.logits.data() + row * config.num_experts, bias, ids);
    return;
  }
  ++(state == RowState::kPad ? counters.pad_rows : counters.replayed_rows);
  counters.clamped_ids += LoadRowIds(config, input.indices.data(), IdBytes(config), row, ids);
}

void WriteRow(const RouterConfig& config, int64_t row, const uint16_t* ids, const float* p,
              const RouterForwardOutput& output) {
  float* probs = output.probs.data() + row * config.num_experts;
  uint8_t* map = output.routing_map.data() + row * config.num_experts;
  std::fill_n(probs, config.num_experts, 0.0f);
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

}  // namespace

absl::Status RouterReplayForward(const RouterConfig& config, const RouterForwardInput& input,
                                 const RouterForwardOutput& output, RouterCounters& counters) {
  if (auto s = CheckForward(config, input, output); !s.ok()) return s;
  const int64_t rows = static_cast<int64_t>(input.states.size());
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t ids[kMaxSlots];
    float p[kMaxSlots];
    FindRowIds(config, input, row, ids, counters);
    ForwardRow(config, input.logits.data() + row * config.num_experts, ids, p);
    if (input.states[row] == RowState::kReplayed) {
      counters.zero_probabilities += std::count(p, p + config.top_k, 0.0f);
    }
    WriteRow(config, row, ids, p, output);
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::trainer
