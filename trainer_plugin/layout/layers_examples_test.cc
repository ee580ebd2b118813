// Worked examples: real models, and every branch of the rule.
#include <functional>
#include <string>

#include "routing_replay/trainer/layers.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using Chunks = std::vector<std::vector<int32_t>>;  // Per v: first layer, count.

struct Example {
  std::string name;
  LayerSplit split;
  std::function<Chunks(int p)> chunks;
  std::function<bool(int layer)> is_moe = nullptr;
  std::vector<size_t> moe_layers = {};        // Per rank.
  std::vector<int32_t> first_moe_layer = {};  // Per rank; -1: it has none.
  MtpPlacement mtp = {};
};

std::function<bool(int)> DensePrefix(int dense) {
  return [dense](int layer) { return layer >= dense; };
}

LayerSplit DeepSeek(int pipeline_size, std::optional<int32_t> first, std::optional<int32_t> last) {
  return {.num_layers = 61, .pipeline_size = pipeline_size, .first_stage_layers = first, .last_stage_layers = last};
}

LayerSplit Qwen235(int pipeline_size, std::optional<int32_t> virtual_stages) {
  return {.num_layers = 94,
          .pipeline_size = pipeline_size,
          .virtual_stages = virtual_stages,
          .account_for_embedding = true,
          .account_for_loss = true};
}

LayerSplit WithLayout(int layers, int pipeline_size, const char* layout) {
  return {.num_layers = layers,
          .pipeline_size = pipeline_size,
          .layout = *ParsePipelineLayout(layout),
          .mtp_num_layers = 1};
}

Chunks MoonlightFour(int p) { return p == 0 ? Chunks{{0, 6}} : Chunks{{7 * p - 1, 7}}; }

Chunks DeepSeekLayout(int p) {
  if (p == 0) return {{0, 3}, {33, 2}};
  if (p <= 13) return {{2 * p + 1, 2}, {2 * p + 33, 2}};
  return {{2 * p + 1, 2}, {61, 0}};
}

std::vector<Example> SizesExamples() {
  return {
      {"moonlight_p2",
       {.num_layers = 27, .pipeline_size = 2, .first_stage_layers = 13},
       [](int p) {
         return p == 0 ? Chunks{{0, 13}} : Chunks{{13, 14}};
       },
       DensePrefix(1),
       {12, 14},
       {1, 13}},
      {"moonlight_p4",
       {.num_layers = 27, .pipeline_size = 4, .first_stage_layers = 6},
       MoonlightFour,
       DensePrefix(1),
       {5, 7, 7, 7}},
      {"moonlight_p4_last",
       {.num_layers = 27, .pipeline_size = 4, .first_stage_layers = 6, .last_stage_layers = 7},
       MoonlightFour,
       DensePrefix(1),
       {5, 7, 7, 7}},
      {"deepseek_p16_last1",
       DeepSeek(16, std::nullopt, 1),
       [](int p) {
         return p < 15 ? Chunks{{4 * p, 4}} : Chunks{{60, 1}};
       },
       DensePrefix(3),
       {1, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1},
       {3, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60}},
      {"deepseek_p16_first3_last2",
       DeepSeek(16, 3, 2),
       [](int p) {
         return p == 0 ? Chunks{{0, 3}} : Chunks{{4 * p - 1, p < 15 ? 4 : 2}};
       },
       DensePrefix(3),
       {0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2}},
      {"deepseek_p8",
       DeepSeek(8, 7, 6),
       [](int p) {
         return p == 0 ? Chunks{{0, 7}} : Chunks{{8 * p - 1, p < 7 ? 8 : 6}};
       },
       DensePrefix(3),
       {4, 8, 8, 8, 8, 8, 8, 6}},
      {"kimi_p8",
       DeepSeek(8, 8, 5),
       [](int p) {
         return Chunks{{8 * p, p < 7 ? 8 : 5}};
       },
       DensePrefix(1),
       {7, 8, 8, 8, 8, 8, 8, 5}},
      {"deepseek_p4",
       DeepSeek(4, std::nullopt, 13),
       [](int p) {
         return Chunks{{16 * p, p < 3 ? 16 : 13}};
       },
       DensePrefix(3),
       {13, 16, 16, 13}},
      {"qwen30_p4",
       {.num_layers = 48, .pipeline_size = 4},
       [](int p) {
         return Chunks{{12 * p, 12}};
       }},
      {"qwen30_p4_v2",
       {.num_layers = 48, .pipeline_size = 4, .virtual_stages = 2},
       [](int p) {
         return Chunks{{6 * p, 6}, {24 + 6 * p, 6}};
       }},
      {"qwen235_p8",
       {.num_layers = 94, .pipeline_size = 8, .first_stage_layers = 11, .last_stage_layers = 11},
       [](int p) {
         return p == 0 ? Chunks{{0, 11}} : Chunks{{12 * p - 1, p < 7 ? 12 : 11}};
       }},
      {"qwen235_p4_account", Qwen235(4, std::nullopt),
       [](int p) {
         return p == 0 ? Chunks{{0, 23}} : Chunks{{24 * p - 1, p < 3 ? 24 : 23}};
       }},
      {"qwen235_p8_v2_account", Qwen235(8, 2),
       [](int p) {
         if (p == 0) return Chunks{{0, 5}, {47, 6}};
         return Chunks{{6 * p - 1, 6}, {6 * p + 47, p < 7 ? 6 : 5}};
       }},
      {"embedding_p4_v4",
       {.num_layers = 31, .pipeline_size = 4, .virtual_stages = 4, .account_for_embedding = true},
       [](int p) {
         if (p == 0) return Chunks{{0, 1}, {7, 2}, {15, 2}, {23, 2}};
         return Chunks{{2 * p - 1, 2}, {2 * p + 7, 2}, {2 * p + 15, 2}, {2 * p + 23, 2}};
       }},
      {"both_given_p4_v2",
       {.num_layers = 16, .pipeline_size = 4, .virtual_stages = 2, .first_stage_layers = 2, .last_stage_layers = 2},
       [](int p) {
         const int begins[] = {0, 1, 4, 7};
         const int count = p == 0 || p == 3 ? 1 : 3;
         return Chunks{{begins[p], count}, {begins[p] + 8, count}};
       }},
      {"first_given_p4_v2",
       {.num_layers = 30, .pipeline_size = 4, .virtual_stages = 2, .first_stage_layers = 6},
       [](int p) {
         return p == 0 ? Chunks{{0, 3}, {15, 3}} : Chunks{{4 * p - 1, 4}, {4 * p + 14, 4}};
       }},
      {"every_second_p2_v2",
       {.num_layers = 8, .pipeline_size = 2, .virtual_stages = 2},
       [](int p) {
         return Chunks{{2 * p, 2}, {2 * p + 4, 2}};
       },
       [](int layer) { return layer % 2 == 0; },
       {2, 2},
       {0, 2}},
      {"lopsided_p2",
       {.num_layers = 48, .pipeline_size = 2, .first_stage_layers = 46},
       [](int p) {
         return p == 0 ? Chunks{{0, 46}} : Chunks{{46, 2}};
       }},
  };
}

std::vector<Example> WrittenExamples() {
  return {
      {.name = "deepseek_p16_layout",
       .split = WithLayout(61, 16, "Et*3|(tt|)*29m|L"),
       .chunks = DeepSeekLayout,
       .is_moe = DensePrefix(3),
       .moe_layers = {2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2, 2},
       .mtp = {.layers = 1, .pp_rank = 14, .chunk = 1}},
      {.name = "four_stages_p2_layout",
       .split = WithLayout(8, 2, "Ett|ttt|tt|tmL"),
       .chunks =
           [](int p) {
             return p == 0 ? Chunks{{0, 2}, {5, 2}} : Chunks{{2, 3}, {7, 1}};
           },
       .mtp = {.layers = 1, .pp_rank = 1, .chunk = 1}},
      {.name = "hybrid_p2",
       .split = {.num_layers = 8, .pipeline_size = 2, .hybrid = *ParseHybridPattern("M*ME|MEME")},
       .chunks =
           [](int p) {
             return Chunks{{4 * p, 4}};
           },
       .is_moe = [](int layer) { return layer == 3 || layer == 5 || layer == 7; },
       .moe_layers = {1, 2},
       .first_moe_layer = {3, 5},
       .mtp = {.layers = 0, .pp_rank = 1, .chunk = 0}},
      {.name = "fifteen_p4_layout",
       .split = WithLayout(15, 4, "Et*3|(tt|)*5t|tmL"),
       .chunks =
           [](int p) {
             const Chunks chunks[] = {{{0, 3}, {9, 2}}, {{3, 2}, {11, 2}}, {{5, 2}, {13, 1}}, {{7, 2}, {14, 1}}};
             return chunks[p];
           },
       .mtp = {.layers = 1, .pp_rank = 3, .chunk = 1}},
  };
}

Geometry GeometryOf(const Example& example) {
  Geometry::Options options{.num_layers = example.split.num_layers, .num_experts = {64}, .top_k = {6}};
  for (int32_t i = 0; i < options.num_layers; ++i) {
    if (!example.is_moe || example.is_moe(i)) options.moe_layer_ids.push_back(i);
  }
  return *Geometry::Create(options);
}

class LayerExamplesTest : public ::testing::TestWithParam<Example> {};

TEST_P(LayerExamplesTest, ChunksAndMoeLayers) {
  const Example& example = GetParam();
  ASSERT_OK_AND_ASSIGN(const LayerTable table, LayerTable::Create(example.split));
  const Geometry geometry = GeometryOf(example);
  for (int32_t p = 0; p < table.pipeline_size(); ++p) {
    Chunks chunks;
    for (int32_t v = 0; v < table.virtual_stages(); ++v) {
      chunks.push_back({table.range(p, v).begin, table.range(p, v).size()});
    }
    EXPECT_EQ(chunks, example.chunks(p)) << "rank " << p;
    ASSERT_OK_AND_ASSIGN(const auto owned, OwnedMoeLayers(geometry, table, p));
    if (!example.moe_layers.empty()) {
      EXPECT_EQ(owned.size(), example.moe_layers[p]) << "rank " << p;
    }
    if (!example.first_moe_layer.empty()) {
      EXPECT_EQ(owned.front().layer_id, example.first_moe_layer[p]) << "rank " << p;
    }
    for (const OwnedLayer& layer : owned) EXPECT_EQ(layer.ordinal, geometry.FindOrdinal(layer.layer_id));
  }
  if (example.split.layout || example.split.hybrid) {
    EXPECT_EQ(table.mtp(), example.mtp);
  }
}

std::string NameOf(const ::testing::TestParamInfo<Example>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Sizes, LayerExamplesTest, ::testing::ValuesIn(SizesExamples()), NameOf);
INSTANTIATE_TEST_SUITE_P(Written, LayerExamplesTest, ::testing::ValuesIn(WrittenExamples()), NameOf);

}  // namespace
}  // namespace routing_replay::trainer
