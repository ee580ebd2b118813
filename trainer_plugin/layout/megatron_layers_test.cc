#include "routing_replay/trainer/megatron_layers.h"

#include <nlohmann/json.hpp>

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using nlohmann::json;

json DeepSeek() {
  return {{"num_layers", 61},
          {"num_moe_experts", 256},
          {"moe_router_topk", 8},
          {"moe_layer_freq", "[0]*3+[1]*58"},
          {"pipeline_model_parallel_size", 16},
          {"pipeline_model_parallel_layout", "Et*3|(tt|)*29m|L"},
          {"mtp_num_layers", 1},
          {"num_layers_in_first_pipeline_stage", nullptr},
          {"layernorm_epsilon", 1e-6}};
}

TEST(LayersFromMegatron, LayoutAsTextOrList) {
  ASSERT_OK_AND_ASSIGN(const MegatronLayers layers, LayersFromMegatron(DeepSeek().dump()));
  EXPECT_EQ(layers.model.geometry.num_moe_layers(), 58);
  EXPECT_EQ(layers.split.num_layers, 61);
  EXPECT_EQ(layers.split.virtual_stages, std::nullopt);
  EXPECT_EQ(layers.split.mtp_num_layers, 1);
  ASSERT_OK_AND_ASSIGN(const LayerTable table, LayerTable::Create(layers.split));
  EXPECT_EQ(table.virtual_stages(), 2);
  EXPECT_EQ(table.mtp(), (MtpPlacement{.layers = 1, .pp_rank = 14, .chunk = 1}));
  json config = DeepSeek();
  json& stages = config["pipeline_model_parallel_layout"] = json::array();
  for (const std::string& stage : layers.split.layout->stages) {
    json& names = stages.emplace_back(json::array());
    for (const char entry : stage) {
      names.push_back(entry == 'E' ? "embedding" : entry == 't' ? "decoder" : entry == 'm' ? "mtp" : "loss");
    }
  }
  ASSERT_OK_AND_ASSIGN(const MegatronLayers as_list, LayersFromMegatron(config.dump()));
  EXPECT_EQ(as_list.split.layout, layers.split.layout);
}

TEST(LayersFromMegatron, SizesUnderBothNames) {
  json config = DeepSeek();
  config.erase("pipeline_model_parallel_layout");
  config["decoder_first_pipeline_num_layers"] = 7;
  config["num_layers_in_last_pipeline_stage"] = 6;
  config["account_for_loss_in_pipeline_split"] = true;
  config["num_virtual_stages_per_pipeline_rank"] = 2;
  ASSERT_OK_AND_ASSIGN(const MegatronLayers layers, LayersFromMegatron(config.dump()));
  EXPECT_EQ(layers.split.first_stage_layers, 7);
  EXPECT_EQ(layers.split.last_stage_layers, 6);
  EXPECT_EQ(layers.split.virtual_stages, 2);
  EXPECT_TRUE(layers.split.account_for_loss);
  EXPECT_FALSE(layers.split.account_for_embedding);
}

TEST(LayersFromMegatron, HybridPatternSaysLayersAndStages) {
  const json config = {{"num_moe_experts", 8},
                       {"moe_router_topk", 2},
                       {"pipeline_model_parallel_size", 2},
                       {"hybrid_layer_pattern", "M*ME|MEME/*E"}};
  ASSERT_OK_AND_ASSIGN(const MegatronLayers layers, LayersFromMegatron(config.dump()));
  EXPECT_EQ(layers.split.num_layers, 8);
  EXPECT_EQ(layers.model.geometry.num_moe_layers(), 3);
  ASSERT_OK_AND_ASSIGN(const LayerTable table, LayerTable::Create(layers.split));
  EXPECT_EQ(table.range(1, 0), (LayerRange{4, 8}));
  EXPECT_EQ(table.mtp_layers(1, 0), 1);
}

TEST(LayersFromMegatron, NamesTheKey) {
  const auto refused = [](const std::string& field, const std::function<void(json&)>& change) {
    json config = DeepSeek();
    change(config);
    const auto layers = LayersFromMegatron(config.dump());
    EXPECT_EQ(layers.status().code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_EQ(GetErrorDetail(layers.status()).value_or(ErrorDetail{}).field, field) << layers.status();
  };
  refused("moe_router_topk", [](json& c) { c.erase("moe_router_topk"); });
  refused("pipeline_model_parallel_layout", [](json& c) { c["pipeline_model_parallel_layout"] = "Ex"; });
  refused("pipeline_model_parallel_layout", [](json& c) { c["pipeline_model_parallel_layout"] = 3; });
  refused("pipeline_model_parallel_layout", [](json& c) { c["pipeline_model_parallel_layout"] = {1}; });
  refused("pipeline_model_parallel_layout", [](json& c) { c["pipeline_model_parallel_layout"] = {{1}}; });
  refused("pipeline_model_parallel_size", [](json& c) { c["pipeline_model_parallel_size"] = "2"; });
  refused("pipeline_model_parallel_size", [](json& c) { c["pipeline_model_parallel_size"] = int64_t{1} << 40; });
  refused("account_for_loss_in_pipeline_split", [](json& c) { c["account_for_loss_in_pipeline_split"] = 1; });
  refused("num_layers_per_virtual_pipeline_stage", [](json& c) {
    c.erase("pipeline_model_parallel_layout");
    c["num_layers_per_virtual_pipeline_stage"] = 2;
  });
}

}  // namespace
}  // namespace routing_replay::trainer
