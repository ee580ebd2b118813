#include "proto/wire/model_config/router_facts.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace routing_replay {
inline namespace wire {
namespace {

std::optional<RouterScore> ScoreOf(const RouterFacts& facts, ConfigReader& reader) {
  constexpr const char* kKeys[] = {"scoring_func", "score_function", "expert_selection_fn",
                                   "moe_router_activation_func"};
  const auto written = reader.Text("score_function", kKeys);
  if (!written.has_value()) return facts.score;
  std::optional<RouterScore> score;
  if (*written == "softmax") score = RouterScore::kSoftmax;
  if (*written == "sigmoid") score = RouterScore::kSigmoid;
  if (*written == "sqrtsoftplus") score = RouterScore::kSqrtSoftplus;
  if (!facts.score_by_key && score != facts.score) return std::nullopt;
  return score;
}

std::optional<bool> ByKey(ConfigReader& reader) {
  constexpr const char* kKeys[] = {"norm_topk_prob", "moe_renormalize"};
  return reader.Flag("renormalized", kKeys);
}

std::optional<bool> RenormalizedOf(Renormalization rule, std::optional<RouterScore> score, ConfigReader& reader) {
  switch (rule) {
    case Renormalization::kUnknown:
      return std::nullopt;
    case Renormalization::kAlways:
      return true;
    case Renormalization::kNever:
      return false;
    case Renormalization::kByKey:
      return ByKey(reader);
    case Renormalization::kByKeyUnlessSoftmax:
      return score == RouterScore::kSoftmax ? true : ByKey(reader);
    case Renormalization::kIfExponent: {
      constexpr const char* kKeys[] = {"moe_normalize_expert_weights"};
      return reader.Number("renormalized", kKeys).has_value();
    }
  }
  return std::nullopt;
}

// Softmax over as many experts as are chosen sums to 1 already.
bool ChoosesAll(const Geometry& geometry) {
  const auto layers = geometry.layers();
  return std::all_of(layers.begin(), layers.end(), [](const LayerRouting& l) { return l.top_k == l.num_experts; });
}

std::optional<int32_t> SharedOf(SharedRule rule, ConfigReader& reader) {
  if (rule == SharedRule::kNone) return 0;
  if (rule == SharedRule::kOne) return 1;
  constexpr const char* kCounts[] = {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"};
  constexpr const char* kSizes[] = {"shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim",
                                    "share_expert_dims"};
  if (const auto count = reader.Int("shared_experts", kCounts)) return static_cast<int32_t>(*count);
  if (const auto size = reader.Int("shared_experts", kSizes)) return *size > 0 ? 1 : 0;
  return std::nullopt;
}

std::optional<double> ScalingOf(Scaling rule, std::optional<int32_t> shared, ConfigReader& reader) {
  constexpr const char* kFactors[] = {"routed_scaling_factor", "route_scale", "router_scaling_factor",
                                      "moe_routed_scaling_factor", "moe_router_scaling_factor"};
  switch (rule) {
    case Scaling::kUnknown:
      return std::nullopt;
    case Scaling::kOne:
      return 1.0;
    case Scaling::kByKey:
      return reader.Number("scaling_factor", kFactors);
    case Scaling::kAverageWithShared: {
      constexpr const char* kStrategy[] = {"shared_expert_combination_strategy"};
      const auto strategy = reader.Text("scaling_factor", kStrategy);
      if (!shared.has_value() || !strategy.has_value()) return std::nullopt;
      return *shared > 0 && *strategy == "average" ? 0.5 : 1.0;
    }
  }
  return std::nullopt;
}

std::optional<ExpertBias> BiasOf(BiasRule rule, ConfigReader& reader) {
  switch (rule) {
    case BiasRule::kUnknown: {
      constexpr const char* kKeys[] = {"topk_method"};
      const auto method = reader.Text("expert_bias", kKeys);
      return method == "noaux_tc" ? std::optional<ExpertBias>(ExpertBias::kToScore) : std::nullopt;
    }
    case BiasRule::kNone:
      return ExpertBias::kNone;
    case BiasRule::kToScore:
      return ExpertBias::kToScore;
    case BiasRule::kToLogit:
      return ExpertBias::kToLogit;
    case BiasRule::kByKey: {
      constexpr const char* kKeys[] = {"use_expert_bias"};
      const auto used = reader.Flag("expert_bias", kKeys);
      if (!used.has_value()) return std::nullopt;
      return *used ? ExpertBias::kToScore : ExpertBias::kNone;
    }
  }
  return std::nullopt;
}

std::optional<GroupLimit> GroupLimitOf(int32_t best_summed, const Geometry& geometry, ConfigReader& reader) {
  if (best_summed == 0) return std::nullopt;
  constexpr const char* kGroups[] = {"n_group", "num_expert_group"};
  constexpr const char* kKept[] = {"topk_group"};
  constexpr const char* kMethod[] = {"topk_method"};
  const auto groups = reader.Int("group_limit", kGroups);
  const auto kept = reader.Int("group_limit", kKept);
  if (!groups.has_value() || !kept.has_value() || *groups <= 1 || *kept >= *groups) return std::nullopt;
  if (reader.Text("group_method", kMethod) == "greedy") return std::nullopt;
  int32_t top_k = 0;
  for (const LayerRouting& layer : geometry.layers()) {
    top_k = std::max(top_k, layer.top_k);
    if (layer.num_experts % *groups != 0) {
      reader.Fail(kGroups[0], absl::StrCat(layer.num_experts, " experts are not ", *groups, " equal groups"));
      return std::nullopt;
    }
  }
  if (*kept < 1) reader.Fail(kKept[0], "is below 1");
  // The K best experts are in K groups at most, whose maxima are the K best.
  if (best_summed == 1 && top_k <= *kept) return std::nullopt;
  return GroupLimit{static_cast<int32_t>(*groups), static_cast<int32_t>(*kept), best_summed};
}

}  // namespace

void ReadRouterFacts(const RouterFacts& facts, const Geometry& geometry, ConfigReader& reader, ModelRouting& routing) {
  routing.score_function = ScoreOf(facts, reader);
  routing.renormalized = RenormalizedOf(facts.renormalized, routing.score_function, reader);
  if (routing.score_function == RouterScore::kSoftmax && ChoosesAll(geometry)) routing.renormalized = std::nullopt;
  routing.shared_experts = SharedOf(facts.shared, reader);
  routing.scaling_factor = ScalingOf(facts.scaling, routing.shared_experts, reader);
  routing.expert_bias = BiasOf(facts.bias, reader);
  routing.group_limit = GroupLimitOf(facts.group_best, geometry, reader);
}

}  // namespace wire
}  // namespace routing_replay
