#include "tests/reference/layer_layout_reference.h"

namespace routing_replay::reference {
namespace {

int32_t EvenFirstLayer(const trainer::LayerSplit& s, int32_t p, int32_t v) {
  if (s.account_for_embedding || s.account_for_loss) {
    const int32_t n = (s.num_layers + s.account_for_embedding + s.account_for_loss) / s.pipeline_size;
    return p == 0 ? 0 : p * n - s.account_for_embedding;
  }
  return v * (s.num_layers / s.virtual_stages.value_or(1)) +
         p * (s.num_layers / (s.pipeline_size * s.virtual_stages.value_or(1)));
}

int32_t UnevenFirstLayer(const trainer::LayerSplit& s, int32_t p, int32_t v) {
  const int32_t first = s.first_stage_layers.value_or(0);
  const int32_t last = s.last_stage_layers.value_or(0);
  const int32_t middle = s.num_layers - first - last;
  const int32_t stages = s.pipeline_size - s.first_stage_layers.has_value() - s.last_stage_layers.has_value();
  const int32_t chunks = s.virtual_stages.value_or(1);
  const int32_t start = v * (first / chunks + middle / chunks + last / chunks);
  if (p == 0) return start;
  const int32_t rank_among_middle = s.first_stage_layers ? p - 1 : p;
  return start + first / chunks + (stages == 0 ? 0 : rank_among_middle * (middle / chunks / stages));
}

}  // namespace

int32_t FirstLayer(const trainer::LayerSplit& split, int32_t p, int32_t v) {
  return split.first_stage_layers || split.last_stage_layers ? UnevenFirstLayer(split, p, v)
                                                             : EvenFirstLayer(split, p, v);
}

}  // namespace routing_replay::reference
