// Random models and their pipeline splits for property tests of plans.
#ifndef TESTS_SUPPORT_RANDOM_MODELS_H_
#define TESTS_SUPPORT_RANDOM_MODELS_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "routing_replay/trainer/layers.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::testing {

class RandomModels {
 public:
  explicit RandomModels(uint32_t seed) : random_(seed) {}

  // A valid split: even (with or without slots for embedding and loss) or uneven over up to 4 ranks, with virtual
  // stages, or cut at any layer.
  trainer::LayerSplit NextSplit() {
    trainer::LayerSplit split{.pipeline_size = Pick(1, 4)};
    const int32_t chunks = split.pipeline_size == 1 ? 1 : Pick(1, 3);
    const int32_t of_chunk = Pick(1, 2);
    split.num_layers = split.pipeline_size * chunks * of_chunk;
    if (Pick(0, 2) == 0) {
      split.layout = Cut(split.num_layers, split.pipeline_size * chunks);
      return split;
    }
    if (chunks > 1) split.virtual_stages = chunks;
    if (split.pipeline_size > 1 && Pick(0, 1)) {
      auto& given = Pick(0, 1) ? split.first_stage_layers : split.last_stage_layers;
      given = chunks * Pick(1, 3);
      split.num_layers += *given - chunks * of_chunk;
    } else if (of_chunk > 1) {
      split.account_for_embedding = Pick(0, 1);
      split.account_for_loss = split.pipeline_size > 1 && Pick(0, 1);
      split.num_layers -= split.account_for_embedding + split.account_for_loss;
    }
    return split;
  }

  // Random dense layers, and E and K of each MoE layer. At least one layer has a router.
  Geometry::Options NextGeometry(int32_t num_layers) {
    constexpr int32_t kExperts[] = {1, 5, 64, 256, 257, 512};
    Geometry::Options options{.num_layers = num_layers};
    const int32_t always = Pick(0, num_layers - 1);
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      if (layer != always && Pick(0, 3) == 0) continue;
      options.moe_layer_ids.push_back(layer);
      options.num_experts.push_back(kExperts[Pick(0, 5)]);
      options.top_k.push_back(Pick(1, std::min(options.num_experts.back(), 8)));
    }
    return options;
  }

  int32_t Pick(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(random_); }

 private:
  // Embedding, layers and loss divided into `stages` stages, some of them empty.
  trainer::PipelineLayout Cut(int32_t layers, int32_t stages) {
    const std::string model = std::string(1, 'E').append(layers, 't').append(1, 'L');
    trainer::PipelineLayout layout{std::vector<std::string>(stages)};
    int32_t stage = 0;
    for (size_t i = 0; i < model.size(); ++i) {
      const int32_t left = stages - 1 - stage;
      if (left > 0) stage += std::min(left, Pick(0, 3) / 2);
      layout.stages[stage].push_back(model[i]);
    }
    return layout;
  }

  std::mt19937 random_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_RANDOM_MODELS_H_
