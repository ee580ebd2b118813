#include "proto/wire/model_config/families.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace routing_replay {
inline namespace wire {
namespace {

using enum LayerPattern;
using Norm = Renormalization;

constexpr const char* kFirstK = "first_k_dense_replace";

// Routers that several families share, by the model that had them first.
constexpr RouterFacts kMixtral = {.score = RouterScore::kSoftmax,
                                  .renormalized = Norm::kAlways,
                                  .scaling = Scaling::kOne,
                                  .bias = BiasRule::kNone,
                                  .shared = SharedRule::kNone};
constexpr RouterFacts kDeepSeekV3 = {.score = RouterScore::kSigmoid,
                                     .renormalized = Norm::kByKey,
                                     .scaling = Scaling::kByKey,
                                     .bias = BiasRule::kToScore,
                                     .group_best = 2,
                                     .shared = SharedRule::kByKey};
constexpr RouterFacts kDeepSeekV2 = {.score = RouterScore::kSoftmax,
                                     .renormalized = Norm::kNever,
                                     .scaling = Scaling::kByKey,
                                     .bias = BiasRule::kNone,
                                     .group_best = 1,
                                     .shared = SharedRule::kByKey};

constexpr RouterFacts With(RouterFacts facts, SharedRule shared) {
  facts.shared = shared;
  return facts;
}
constexpr RouterFacts With(RouterFacts facts, Norm renormalized) {
  facts.renormalized = renormalized;
  return facts;
}
constexpr RouterFacts With(RouterFacts facts, RouterScore score) {
  facts.score = score;
  return facts;
}
constexpr RouterFacts With(RouterFacts facts, BiasRule bias) {
  facts.bias = bias;
  return facts;
}
constexpr RouterFacts With(RouterFacts facts, Scaling scaling) {
  facts.scaling = scaling;
  return facts;
}
constexpr RouterFacts ScoreByKey(RouterFacts facts, RouterScore otherwise) {
  facts.score = otherwise;
  facts.score_by_key = true;
  return facts;
}
constexpr RouterFacts WithoutGroups(RouterFacts facts) {
  facts.group_best = 0;
  return facts;
}

constexpr RouterFacts kMixtralShared = With(kMixtral, SharedRule::kByKey);
constexpr RouterFacts kQwen = With(kMixtral, Norm::kByKey);
constexpr RouterFacts kQwenShared = With(kQwen, SharedRule::kByKey);
// Sigmoid with a bias, always renormalised, scaled, no groups.
constexpr RouterFacts kAfmoe = WithoutGroups(With(kDeepSeekV3, Norm::kAlways));
constexpr RouterFacts kErnie = With(kMixtralShared, BiasRule::kToScore);
constexpr RouterFacts kMistral = [] {
  RouterFacts facts = With(With(kDeepSeekV3, RouterScore::kSoftmax), BiasRule::kNone);
  facts.group_best = 2;
  return facts;
}();
// Weights that are none of softmax, sigmoid and their like.
constexpr RouterFacts kOwnWeights = {.bias = BiasRule::kNone, .shared = SharedRule::kNone};

constexpr Family kFamilies[] = {
    // Every layer a MoE layer.
    {.model_types = "mixtral gpt_oss openai_privacy_filter granitemoe minimax", .router = kMixtral},
    {.model_types = "granitemoe_swa granitemoeshared granitemoehybrid aria qwen3_5_moe", .router = kMixtralShared},
    {.model_types = "hunyuan_v1_moe hunyuan", .router = With(kMixtral, SharedRule::kOne)},
    {.model_types = "jetmoe", .router = kMixtral, .routers_per_layer = 2},
    {.model_types = "gemma4", .router = kMixtral, .enabled_by = "enable_moe_block"},
    {.model_types = "diffusion_gemma", .router = kMixtral},
    {.model_types = "olmoe flex_olmo", .router = kQwen},
    {.model_types = "qwen4_exp", .router = kQwenShared},
    {.model_types = "dbrx",
     .router = With(kMixtral, Norm::kIfExponent),
     .depth_key = "n_layers",
     .experts_in = "ffn_config"},
    {.model_types = "minimax_m2", .router = With(With(kAfmoe, Scaling::kOne), SharedRule::kNone)},
    {.model_types = "solar_open", .router = kDeepSeekV3},
    {.model_types = "inkling2", .router = ScoreByKey(With(kAfmoe, SharedRule::kNone), RouterScore::kSigmoid)},
    {.model_types = "kolibri1",
     .router = With(With(With(kQwenShared, RouterScore::kSigmoid), BiasRule::kToLogit), Norm::kByKey)},
    {.model_types = "longcat_flash",
     .router = With(With(WithoutGroups(kDeepSeekV2), BiasRule::kToScore), SharedRule::kNone),
     .depth_key = "num_layers",
     .zero_experts_key = "zero_expert_num"},
    {.model_types = "zaya", .router = With(With(kMixtral, Norm::kNever), BiasRule::kToScore), .zero_experts = 1},
    {.model_types = "phimoe", .router = kOwnWeights},
    {.model_types = "doge", .router = kOwnWeights, .enabled_by = "is_moe"},

    // Steps, intervals, periods, lists.
    {.model_types = "qwen3_moe qwen3_omni_moe qwen3_omni_moe_thinker", .pattern = kSparseStep, .router = kQwen},
    {.model_types = "qwen2_moe qwen3_next", .pattern = kSparseStep, .router = kQwenShared},
    {.model_types = "qwen3_vl_moe", .pattern = kSparseStep, .router = kMixtral},
    {.model_types = "flint", .pattern = kSparseStep, .prefix = 2, .router = With(kQwenShared, RouterScore::kSigmoid)},
    {.model_types = "ernie4_5_moe", .pattern = kInterval, .prefix = 1, .router = kErnie},
    {.model_types = "ernie4_5_vl_moe", .pattern = kInterval, .prefix = 1, .router = kErnie, .routers_per_layer = 2},
    {.model_types = "jamba", .pattern = kPeriod, .router = With(kMixtral, Norm::kNever), .min_experts = 2},
    {.model_types = "llama4",
     .pattern = kIdsOrStep,
     .router = With(With(With(kMixtral, RouterScore::kSigmoid), Norm::kNever), SharedRule::kOne)},
    {.model_types = "step3p5 step3p7", .pattern = kIdsOrPrefix, .prefix = 3, .router = kAfmoe},
    {.model_types = "nemotron_h", .pattern = kBlockTypes, .router = kDeepSeekV3},
    {.model_types = "deepseek_v4",
     .pattern = kHashPrefix,
     .prefix = 3,
     .router = ScoreByKey(WithoutGroups(kDeepSeekV3), RouterScore::kSqrtSoftplus)},

    // A dense prefix.
    {.model_types = "deepseek_v3", .pattern = kPrefix, .prefix = 3, .prefix_key = kFirstK, .router = kDeepSeekV3},
    {.model_types = "deepseek_v32",
     .pattern = kPrefix,
     .prefix = 3,
     .prefix_key = kFirstK,
     .router = kDeepSeekV3,
     .decisive_experts_key = "num_experts"},
    {.model_types = "glm_moe_dsa",
     .pattern = kPrefix,
     .prefix = 3,
     .prefix_key = kFirstK,
     .router = kDeepSeekV3,
     .decisive_experts_key = "num_experts"},
    {.model_types = "kimi_k2 kimi_k25 glm4_moe glm4v_moe exaone_moe kimi_linear",
     .pattern = kPrefix,
     .prefix = 1,
     .prefix_key = kFirstK,
     .router = kDeepSeekV3},
    {.model_types = "axk1 axk2 dots3_note",
     .pattern = kPrefix,
     .prefix = 1,
     .prefix_key = kFirstK,
     .every_nth = true,
     .router = kDeepSeekV3},
    {.model_types = "glm4_moe_lite hy_v4", .pattern = kPrefix, .prefix = 1, .router = kDeepSeekV3},
    {.model_types = "mimo_v2_flash", .pattern = kPrefix, .prefix = 1, .router = With(kDeepSeekV3, SharedRule::kNone)},
    {.model_types = "glm5_next", .pattern = kPrefix, .prefix = 3, .router = kDeepSeekV3},
    {.model_types = "beam", .pattern = kPrefix, .prefix = 3, .router = With(kDeepSeekV3, SharedRule::kNone)},
    {.model_types = "dots1", .pattern = kPrefix, .prefix_key = kFirstK, .router = kDeepSeekV3},
    {.model_types = "bailing_hybrid", .pattern = kPrefix, .prefix = 2, .prefix_key = kFirstK, .router = kDeepSeekV3},
    {.model_types = "bailing_moe_v2 bailing_moe_linear bailing_moe_linear_v2",
     .pattern = kPrefix,
     .prefix_key = kFirstK,
     .router = kDeepSeekV3},
    {.model_types = "bailing_moe", .pattern = kPrefix, .prefix_key = kFirstK, .router = kQwenShared},
    {.model_types = "afmoe", .pattern = kPrefix, .prefix = 1, .prefix_key = "num_dense_layers", .router = kAfmoe},
    {.model_types = "hy_v3 laguna", .pattern = kPrefix, .prefix = 1, .router = kAfmoe},
    {.model_types = "minimax_m3_vl minimax_m3", .pattern = kPrefix, .router = kAfmoe},
    {.model_types = "muse_spark", .pattern = kPrefix, .router = With(kAfmoe, SharedRule::kNone)},
    {.model_types = "lfm2_moe",
     .pattern = kPrefix,
     .prefix = 2,
     .prefix_key = "num_dense_layers",
     .router = With(With(With(kAfmoe, Norm::kByKey), BiasRule::kByKey), SharedRule::kNone)},
    {.model_types = "mistral4", .pattern = kPrefix, .prefix_key = kFirstK, .router = kMistral},
    {.model_types = "mistral_large4",
     .pattern = kPrefix,
     .prefix = 1,
     .prefix_key = kFirstK,
     .router = With(kMistral, Norm::kAlways),
     .decisive_experts_key = "num_experts"},
    {.model_types = "deepseek_v2", .pattern = kPrefix, .prefix_key = kFirstK, .router = kDeepSeekV2},
    {.model_types = "deepseek_ocr2",
     .pattern = kPrefix,
     .prefix = kNoDefault,
     .prefix_key = kFirstK,
     .router = kDeepSeekV2},
    {.model_types = "unlimited_ocr", .pattern = kPrefix, .prefix = 1, .prefix_key = kFirstK, .router = kDeepSeekV2},
    {.model_types = "mellum", .pattern = kPrefix, .router = kQwen},
    {.model_types = "cohere2_moe",
     .pattern = kPrefix,
     .prefix_key = kFirstK,
     .router = ScoreByKey(With(With(kMixtralShared, Norm::kByKeyUnlessSoftmax), Scaling::kAverageWithShared),
                          RouterScore::kSoftmax)},
    // Its weights are normalised together with those of the shared experts.
    {.model_types = "inkling inkling_mm_model",
     .pattern = kPrefix,
     .prefix_key = "dense_mlp_idx",
     .router = {.bias = BiasRule::kToScore}},
};

}  // namespace

const Family* FindFamily(absl::string_view model_type) {
  const absl::string_view name = absl::StripSuffix(model_type, "_text");
  for (const Family& family : kFamilies) {
    for (const absl::string_view type : absl::StrSplit(family.model_types, ' ')) {
      if (type == name) return &family;
    }
  }
  return nullptr;
}

const RouterFacts& UnknownRouter() {
  static constexpr RouterFacts kUnknown = {
      .score_by_key = true, .renormalized = Norm::kByKey, .scaling = Scaling::kByKey, .bias = BiasRule::kUnknown};
  return kUnknown;
}

}  // namespace wire
}  // namespace routing_replay
