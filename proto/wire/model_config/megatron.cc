#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "proto/json/python_json.h"
#include "proto/wire/model_config/config_reader.h"
#include "proto/wire/model_config/invalid_config.h"
#include "proto/wire/model_config/moe_layers.h"
#include "routing_replay/wire/model_config.h"

namespace routing_replay {
namespace {

using nlohmann::json;

constexpr const char* kFrequency = "moe_layer_freq";
constexpr const char* kHybrid[] = {"hybrid_override_pattern", "hybrid_layer_pattern"};
constexpr const char* kFirstK[] = {"first_k_dense_replace"};

class MegatronModel {
 public:
  explicit MegatronModel(const json& config) : reader_(config, "", routing_.sources) {}

  absl::StatusOr<ModelConfig> Read() {
    const auto experts = Int("num_experts", "num_moe_experts", "num_experts");
    if (reader_.status().ok() && experts.value_or(0) < 1) {
      return InvalidConfig("num_moe_experts", "no routed experts: it is missing or below 1");
    }
    const auto top_k = Int("top_k", "moe_router_topk");
    if (reader_.status().ok() && !top_k.has_value()) reader_.Fail("moe_router_topk", "is missing");
    const std::vector<int32_t> layers = Layers();
    if (!reader_.status().ok()) return reader_.status();
    if (layers.empty()) return InvalidConfig(kFrequency, "no routed experts: no layer is a MoE layer");
    auto geometry = Geometry::Create({.num_layers = static_cast<int32_t>(num_layers_),
                                      .moe_layer_ids = layers,
                                      .num_experts = {static_cast<int32_t>(*experts)},
                                      .top_k = {static_cast<int32_t>(*top_k)}});
    if (!geometry.ok()) return geometry.status();
    ReadRouting(static_cast<int32_t>(*top_k));
    for (int32_t i = 0; i < std::min<int64_t>(hash_layers_, geometry->num_moe_layers()); ++i) {
      routing_.hash_layers.push_back(geometry->layer(i).layer_id);
    }
    if (!reader_.status().ok()) return reader_.status();
    return ModelConfig{*std::move(geometry), std::move(routing_)};
  }

 private:
  template <typename... Key>
  std::optional<int64_t> Int(const char* fact, Key... names) {
    const char* const keys[] = {names...};
    return reader_.Int(fact, keys);
  }

  std::vector<int32_t> Layers() {
    MoeLayerRule rule;
    num_layers_ = Int("num_layers", "num_layers").value_or(0);
    const char* key = kFrequency;
    if (const auto pattern = reader_.Text("moe_layers", kHybrid)) {
      key = kHybrid[0];
      auto flags = HybridMoeFlags(*pattern, key);
      reader_.Update(flags.status());
      // A hybrid's depth is its pattern's; where both are told they must agree.
      if (flags.ok()) {
        if (!reader_.Has("num_layers")) num_layers_ = static_cast<int64_t>(flags->size());
        rule.moe = *std::move(flags);
      }
    } else {
      Frequency(rule);
    }
    if (!reader_.status().ok()) return {};
    auto layers = MoeLayerIds(num_layers_, rule, reader_.Has("num_layers") ? key : "num_layers");
    reader_.Update(layers.status());
    return layers.ok() ? *std::move(layers) : std::vector<int32_t>();
  }

  void Frequency(MoeLayerRule& rule) {
    rule.first = reader_.Int("dense_prefix", kFirstK).value_or(0);
    const char* const keys[] = {kFrequency};
    const json* written = reader_.Find("moe_layers", keys);
    if (written == nullptr) return;
    MoeLayerFrequency frequency;
    if (written->is_string()) {
      auto parsed = ParseMoeLayerFrequency(written->get<std::string>());
      reader_.Update(parsed.status());
      if (parsed.ok()) frequency = *std::move(parsed);
    } else if (written->is_array()) {
      frequency.flags = reader_.Ints("moe_layers", keys);
    } else {
      frequency.step = reader_.Int("moe_layers", keys).value_or(1);
    }
    if (rule.first > 0 && frequency.step != 1) {
      // From 0 on, as Megatron counts, or from the prefix on? Readers differ.
      reader_.Fail(kFrequency, absl::StrCat("a step of ", frequency.step, " beside ", kFirstK[0],
                                            " leaves open which layers are meant: give a flag per layer"));
    }
    rule.step = frequency.step;
    if (frequency.flags.has_value()) Flags(*frequency.flags, rule);
  }

  void Flags(const std::vector<int64_t>& flags, MoeLayerRule& rule) {
    if (std::any_of(flags.begin(), flags.end(), [](int64_t flag) { return flag != 0 && flag != 1; })) {
      return reader_.Fail(kFrequency, "a flag is neither 0 nor 1");
    }
    rule.moe = std::vector<bool>(flags.begin(), flags.end());
  }

  // Megatron's topk_routing_with_score_function: softmax before or after the choice; other scores are divided by their
  // sum where K > 1; the bias is added to the score, and only of scores other than softmax.
  void ReadRouting(int32_t top_k) {
    const char* const score_keys[] = {"moe_router_score_function"};
    const char* const pre_keys[] = {"moe_router_pre_softmax"};
    const char* const scale_keys[] = {"moe_router_topk_scaling_factor"};
    const char* const bias_keys[] = {"moe_router_enable_expert_bias"};
    const std::string score = reader_.Text("score_function", score_keys).value_or("softmax");
    const bool pre_softmax = reader_.Flag("renormalized", pre_keys).value_or(false);
    routing_.model_type = "megatron";
    if (score == "softmax") {
      routing_.score_function = RouterScore::kSoftmax;
      routing_.renormalized = !pre_softmax;
    } else if (score == "sigmoid" || score == "sqrtsoftplus") {
      routing_.score_function = score == "sigmoid" ? RouterScore::kSigmoid : RouterScore::kSqrtSoftplus;
      routing_.renormalized = top_k > 1;
    } else {
      reader_.Fail(score_keys[0], absl::StrCat("\"", score, "\" is none of softmax, sigmoid, sqrtsoftplus"));
    }
    const double factor = reader_.Number("scaling_factor", scale_keys).value_or(0);
    routing_.scaling_factor = factor == 0 ? 1 : factor;
    routing_.expert_bias =
        reader_.Flag("expert_bias", bias_keys).value_or(false) ? ExpertBias::kToScore : ExpertBias::kNone;
    routing_.shared_experts = Int("shared_experts", "moe_shared_expert_intermediate_size").value_or(0) > 0 ? 1 : 0;
    routing_.mtp_layers = static_cast<int32_t>(Int("mtp_layers", "mtp_num_layers").value_or(0));
    if (routing_.mtp_layers < 0) reader_.Fail("mtp_num_layers", "is negative");
    hash_layers_ = Int("hash_layers", "moe_n_hash_layers").value_or(0);
    ReadGroups(top_k);
  }

  // Megatron sums the best K / group_topk scores of a group (group_limited_topk).
  void ReadGroups(int32_t top_k) {
    const int64_t groups = Int("group_limit", "moe_router_num_groups").value_or(1);
    const int64_t kept = Int("group_limit", "moe_router_group_topk").value_or(groups);
    if (groups <= 1 || kept >= groups) return;
    if (kept < 1) return reader_.Fail("moe_router_group_topk", "is below 1");
    routing_.group_limit = GroupLimit{static_cast<int32_t>(groups), static_cast<int32_t>(kept),
                                      std::max(1, top_k / static_cast<int32_t>(kept))};
  }

  ModelRouting routing_;
  ConfigReader reader_;
  int64_t num_layers_ = 0;
  int64_t hash_layers_ = 0;
};

}  // namespace

absl::StatusOr<ModelConfig> ModelConfigFromMegatron(absl::string_view text) {
  const auto root = ParseJson(QuoteNonFinite(text), "config");
  if (!root.ok()) return root.status();
  if (!root->is_object()) return InvalidConfig("config", "is not a JSON object");
  return MegatronModel(*root).Read();
}

}  // namespace routing_replay
