#include "routing_replay/wire/model_config.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "proto/wire/model_config/moe_layers.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using nlohmann::json;
using testing::Fails;
using ::testing::HasSubstr;

std::vector<int32_t> MoeLayersOf(const Geometry& geometry) {
  std::vector<int32_t> ids;
  for (const LayerRouting& layer : geometry.layers()) ids.push_back(layer.layer_id);
  return ids;
}

std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> ids(end - begin);
  std::iota(ids.begin(), ids.end(), begin);
  return ids;
}

const json& DeepSeekV3() {
  static const json& config = *new json{{"model_type", "deepseek_v3"},
                                        {"num_hidden_layers", 61},
                                        {"first_k_dense_replace", 3},
                                        {"moe_layer_freq", 1},
                                        {"n_routed_experts", 256},
                                        {"num_experts_per_tok", 8},
                                        {"n_group", 8},
                                        {"topk_group", 4},
                                        {"topk_method", "noaux_tc"},
                                        {"scoring_func", "sigmoid"},
                                        {"norm_topk_prob", true},
                                        {"n_shared_experts", 1},
                                        {"routed_scaling_factor", 2.5},
                                        {"num_nextn_predict_layers", 1}};
  return config;
}

// Models beyond those of the golden files.
TEST(HuggingFaceTest, PublishedModels) {
  struct Case {
    const char* config;
    std::vector<int32_t> moe_layers;
    int32_t num_layers, num_experts, top_k;
  };
  const Case cases[] = {
      {R"({"model_type": "bailing_moe_v2", "num_hidden_layers": 80, "first_k_dense_replace": 4, "num_experts": 256,
           "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "score_function": "sigmoid"})",
       Range(4, 80), 80, 256, 8},
      {R"({"model_type": "mimo_v2_flash", "num_hidden_layers": 4, "moe_layer_freq": [0, 1, 1, 1],
           "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": null})",
       Range(1, 4), 4, 256, 8},
      {R"({"model_type": "glm4_moe_lite", "num_hidden_layers": 47, "first_k_dense_replace": 1, "n_routed_experts": 64,
           "num_experts_per_tok": 4})",
       Range(1, 47), 47, 64, 4},
      {R"({"model_type": "ernie4_5_vl_moe", "text_config": {"num_hidden_layers": 54, "moe_num_experts": [64, 64],
           "moe_k": 8, "moe_layer_start_index": [3, 3], "moe_layer_end_index": [53, 53], "moe_layer_interval": 1}})",
       Range(3, 54), 54, 64, 8},
      {R"({"model_type": "kimi_vl", "text_config": {"model_type": "deepseek_v3", "num_hidden_layers": 27,
           "first_k_dense_replace": 1, "n_routed_experts": 64, "num_experts_per_tok": 6}})",
       Range(1, 27), 27, 64, 6},
  };
  for (const Case& c : cases) {
    ASSERT_OK_AND_ASSIGN(const ModelConfig model, ModelConfigFromHuggingFace(c.config));
    EXPECT_EQ(MoeLayersOf(model.geometry), c.moe_layers) << c.config;
    EXPECT_EQ(model.geometry.num_layers(), c.num_layers) << c.config;
    EXPECT_EQ(model.geometry.layer(0).num_experts, c.num_experts) << c.config;
    EXPECT_EQ(model.geometry.layer(0).top_k, c.top_k) << c.config;
  }
}

TEST(HuggingFaceTest, FactsAndTheirSources) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig model, ModelConfigFromHuggingFace(DeepSeekV3().dump()));
  const ModelRouting& routing = model.routing;
  EXPECT_EQ(routing.model_type, "deepseek_v3");
  EXPECT_EQ(routing.score_function, RouterScore::kSigmoid);
  EXPECT_EQ(routing.renormalized, true);
  EXPECT_EQ(routing.scaling_factor, 2.5);
  EXPECT_EQ(routing.group_limit, (GroupLimit{8, 4, 2}));
  EXPECT_EQ(routing.expert_bias, ExpertBias::kToScore);
  EXPECT_EQ(routing.shared_experts, 1);
  EXPECT_EQ(routing.mtp_layers, 1);
  EXPECT_EQ(routing.sources.at("num_experts"), "n_routed_experts");
  EXPECT_EQ(routing.sources.at("moe_layers"), "first_k_dense_replace");
}

TEST(HuggingFaceTest, AnotherScoreThanTheTypesLeavesItOpen) {
  json config = DeepSeekV3();
  config["scoring_func"] = "softmax";
  ASSERT_OK_AND_ASSIGN(const ModelConfig model, ModelConfigFromHuggingFace(config.dump()));
  EXPECT_FALSE(model.routing.score_function.has_value());
}

TEST(HuggingFaceTest, UnknownTypesByTheirKeys) {
  json config = DeepSeekV3();
  config["model_type"] = "brand_new";
  ASSERT_OK_AND_ASSIGN(const ModelConfig model, ModelConfigFromHuggingFace(config.dump()));
  EXPECT_EQ(MoeLayersOf(model.geometry), Range(3, 61));
  EXPECT_EQ(model.routing.model_type, "");
  EXPECT_EQ(model.routing.score_function, RouterScore::kSigmoid);
  EXPECT_FALSE(model.routing.group_limit.has_value());

  config["mlp_layer_types"] = json(61, "sparse");  // Wins wherever it is.
  ASSERT_OK_AND_ASSIGN(const ModelConfig listed, ModelConfigFromHuggingFace(config.dump()));
  EXPECT_EQ(MoeLayersOf(listed.geometry), Range(0, 61));
  config.erase("mlp_layer_types");
  config["decoder_sparse_step"] = 2;
  EXPECT_THAT(ModelConfigFromHuggingFace(config.dump()), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  config.erase("decoder_sparse_step");
  config["moe_layer_freq"] = 2;
  EXPECT_THAT(ModelConfigFromHuggingFace(config.dump()), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  config.erase("moe_layer_freq");
  config.erase("first_k_dense_replace");
  const auto unclear = ModelConfigFromHuggingFace(config.dump());
  EXPECT_THAT(unclear, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(std::string(unclear.status().message()), HasSubstr("decoder_sparse_step"));
}

TEST(HuggingFaceTest, Refusals) {
  struct Case {
    json change;
    const char* words;
  };
  const Case cases[] = {
      {{{"num_experts_per_tok", nullptr}}, "num_experts_per_tok"},
      {{{"n_routed_experts", nullptr}}, "no routed experts"},
      {{{"n_routed_experts", 0}}, "no routed experts"},
      {{{"first_k_dense_replace", 61}}, "no routed experts"},
      {{{"num_hidden_layers", nullptr}}, "num_hidden_layers"},
      {{{"num_experts", 64}}, "contradicts"},
      {{{"num_experts_per_tok", 8.5}}, "32-bit integer"},
      {{{"moe_layer_freq", 2}}, "moe_layer_freq"},
      {{{"mlp_layer_types", {"dense", "sparse"}}}, "tells of 2 layers"},
      {{{"mlp_layer_types", json(61, "odd")}}, "odd"},
      {{{"n_group", 7}}, "equal groups"},
      {{{"is_encoder_decoder", true}}, "encoder-decoder"},
      {{{"num_nextn_predict_layers", -1}}, "mtp_layers"},
      {{{"num_experts_per_tok", 257}}, "top_k"},
  };
  for (const Case& c : cases) {
    json config = DeepSeekV3();
    config.update(c.change);
    const auto model = ModelConfigFromHuggingFace(config.dump());
    EXPECT_THAT(model, Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << c.change;
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(c.words)) << c.change;
  }
  const json deep = {{"model_type", "deepseek_v4"},
                     {"num_hidden_layers", 2000000000},
                     {"num_hash_layers", 2000000000},
                     {"n_routed_experts", 8},
                     {"num_experts_per_tok", 2}};
  EXPECT_THAT(ModelConfigFromHuggingFace(deep.dump()), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  for (const char* text : {"", "[]", "7", "{"}) {
    EXPECT_THAT(ModelConfigFromHuggingFace(text), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << text;
  }
}

TEST(HuggingFaceTest, NonFiniteNumbersAsPythonWritesThem) {
  const std::string text = DeepSeekV3().dump();
  const std::string with = R"({"a": [0.0, Infinity, -Infinity, NaN], "b": "NaN \" Infinity", )" + text.substr(1);
  EXPECT_OK(ModelConfigFromHuggingFace(with).status());
}

// No value of a key, however odd, does more than fail.
TEST(HuggingFaceTest, OddValuesOfEveryKey) {
  const json odd[] = {nullptr,
                      true,
                      -1,
                      0,
                      3.5,
                      json(~uint64_t{0}),
                      "",
                      "x",
                      {1, 2, 3},
                      {"E"},
                      json::array(),
                      json::object(),
                      {{"num_experts", "x"}}};
  const json configs[] = {
      DeepSeekV3(),
      {{"model_type", "qwen3_moe"},
       {"num_hidden_layers", 4},
       {"num_experts", 8},
       {"num_experts_per_tok", 2},
       {"decoder_sparse_step", 2},
       {"mlp_only_layers", {1}},
       {"per_layer_config", {{"3", {{"num_experts", 4}}}}}},
      {{"model_type", "nemotron_h"},
       {"hybrid_override_pattern", "ME*E"},
       {"n_routed_experts", 8},
       {"num_experts_per_tok", 2},
       {"mtp_config", {{"num_mtp_layers", 1}}}},
      {{"model_type", "dbrx"}, {"n_layers", 4}, {"ffn_config", {{"moe_num_experts", 8}, {"moe_top_k", 2}}}},
      {{"model_type", "step3p7"},
       {"text_config",
        {{"num_hidden_layers", 4}, {"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_layers_enum", "1,3"}}}},
      {{"model_type", "longcat_flash"},
       {"num_layers", 4},
       {"n_routed_experts", 8},
       {"zero_expert_num", 4},
       {"moe_topk", {2, 2, 2, 2}}},
  };
  for (const json& config : configs) {
    ASSERT_OK(ModelConfigFromHuggingFace(config.dump()).status()) << config;
    for (const auto& [key, value] : config.items()) {
      for (const json& bad : odd) {
        json changed = config;
        changed[key] = bad;
        const auto model = ModelConfigFromHuggingFace(changed.dump());
        EXPECT_TRUE(model.ok() || model.status().code() == absl::StatusCode::kInvalidArgument) << changed;
      }
    }
  }
}

std::string Megatron(const json& change) {
  json config = {{"num_layers", 8}, {"num_moe_experts", 16}, {"moe_router_topk", 4}};
  config.update(change);
  return config.dump();
}

TEST(MegatronTest, MoeLayers) {
  const std::pair<json, std::vector<int32_t>> cases[] = {
      {json::object(), Range(0, 8)},
      {{{"moe_layer_freq", 1}}, Range(0, 8)},
      {{{"moe_layer_freq", 3}}, {0, 3, 6}},
      {{{"moe_layer_freq", "3"}}, {0, 3, 6}},
      {{{"moe_layer_freq", {0, 1, 1, 1, 1, 1, 1, 0}}}, Range(1, 7)},
      {{{"moe_layer_freq", "([0]*3+[1]*5)"}}, Range(3, 8)},
      {{{"moe_layer_freq", "[0, 1,]*4"}}, {1, 3, 5, 7}},
      {{{"moe_layer_freq", "2*([0]+[1]*(1+2))"}}, {1, 2, 3, 5, 6, 7}},
      {{{"first_k_dense_replace", 2}, {"moe_layer_freq", 1}}, Range(2, 8)},
      {{{"hybrid_override_pattern", "ME|M*|EM-E"}}, {1, 4, 7}},
      {{{"hybrid_layer_pattern", "MEM*/ME/ME"}, {"num_layers", nullptr}}, {1}},
  };
  for (const auto& [change, expected] : cases) {
    ASSERT_OK_AND_ASSIGN(const ModelConfig model, ModelConfigFromMegatron(Megatron(change)));
    EXPECT_EQ(MoeLayersOf(model.geometry), expected) << change;
  }
}

TEST(MegatronTest, Refusals) {
  const json cases[] = {
      {{"num_layers", nullptr}},
      {{"num_moe_experts", nullptr}},
      {{"moe_router_topk", nullptr}},
      {{"moe_layer_freq", 0}},
      {{"moe_layer_freq", {1, 1}}},
      {{"moe_layer_freq", {2, 1, 1, 1, 1, 1, 1, 1}}},
      {{"moe_layer_freq", json(8, 0)}},
      {{"moe_layer_freq", 2}, {"first_k_dense_replace", 1}},
      {{"hybrid_override_pattern", "MEXX"}},
      {{"hybrid_override_pattern", "ME"}},
      {{"moe_router_score_function", "relu"}},
      {{"mtp_num_layers", -1}},
  };
  for (const json& change : cases) {
    EXPECT_THAT(ModelConfigFromMegatron(Megatron(change)), Fails(absl::StatusCode::kInvalidArgument, Reason::kField))
        << change;
  }
  for (const char* text : {"", "[", "[1", "(1", "[1]*[1]", "[1]+1", "1 1", "[x]", "__import__('os')", "[1]*99999999999",
                           "[1]*4096*4096", "-1", "((((((((((((((((((((1))))))))))))))))))))"}) {
    EXPECT_THAT(ParseMoeLayerFrequency(text), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << text;
  }
}

TEST(MegatronTest, Routing) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig plain, ModelConfigFromMegatron(Megatron(json::object())));
  EXPECT_EQ(plain.routing.score_function, RouterScore::kSoftmax);
  EXPECT_EQ(plain.routing.renormalized, true);
  EXPECT_EQ(plain.routing.scaling_factor, 1.0);
  EXPECT_EQ(plain.routing.expert_bias, ExpertBias::kNone);
  ASSERT_OK_AND_ASSIGN(const ModelConfig deepseek,
                       ModelConfigFromMegatron(Megatron({{"moe_router_score_function", "sigmoid"},
                                                         {"moe_router_enable_expert_bias", true},
                                                         {"moe_router_num_groups", 8},
                                                         {"moe_router_group_topk", 2},
                                                         {"moe_router_topk_scaling_factor", 2.5},
                                                         {"moe_shared_expert_intermediate_size", 64},
                                                         {"moe_n_hash_layers", 2},
                                                         {"moe_layer_freq", "[0]+[1]*7"},
                                                         {"mtp_num_layers", 1}})));
  EXPECT_EQ(deepseek.routing.group_limit, (GroupLimit{8, 2, 2}));
  EXPECT_EQ(deepseek.routing.expert_bias, ExpertBias::kToScore);
  EXPECT_EQ(deepseek.routing.scaling_factor, 2.5);
  EXPECT_EQ(deepseek.routing.shared_experts, 1);
  EXPECT_EQ(deepseek.routing.mtp_layers, 1);
  EXPECT_EQ(deepseek.routing.hash_layers, Range(1, 3));
  ASSERT_OK_AND_ASSIGN(const ModelConfig pre, ModelConfigFromMegatron(Megatron({{"moe_router_pre_softmax", true}})));
  EXPECT_EQ(pre.routing.renormalized, false);
}

// Random expressions beside the value that they were made of.
struct Expression {
  std::string text;
  std::vector<int64_t> flags;
};

Expression RandomExpression(std::mt19937_64& random, int depth) {
  const uint64_t kind = depth == 0 ? 0 : random() % 4;
  if (kind == 0) {
    Expression list{"[", {}};
    for (uint64_t i = random() % 4; i > 0; --i) {
      list.flags.push_back(random() % 2);
      absl::StrAppend(&list.text, list.flags.size() == 1 ? "" : ", ", list.flags.back());
    }
    list.text += "]";
    return list;
  }
  const Expression left = RandomExpression(random, depth - 1);
  if (kind == 1) return {absl::StrCat("(", left.text, ")"), left.flags};
  if (kind == 2) {
    const Expression right = RandomExpression(random, depth - 1);
    Expression sum{absl::StrCat(left.text, " + ", right.text), left.flags};
    sum.flags.insert(sum.flags.end(), right.flags.begin(), right.flags.end());
    return sum;
  }
  const uint64_t times = random() % 3;
  Expression product{absl::StrCat("(", left.text, ")*", times), {}};
  for (uint64_t i = 0; i < times; ++i) {
    product.flags.insert(product.flags.end(), left.flags.begin(), left.flags.end());
  }
  return product;
}

TEST(MoeLayerFrequencyTest, RandomExpressions) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const Expression expression = RandomExpression(random, 4);
    ASSERT_OK_AND_ASSIGN(const MoeLayerFrequency frequency, ParseMoeLayerFrequency(expression.text));
    ASSERT_EQ(frequency.flags, expression.flags) << expression.text;
  }
}

}  // namespace
}  // namespace routing_replay
