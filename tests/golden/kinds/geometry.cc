// geometry_*: the routing geometry and the routers' facts of a model's config.json.
#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/model_config.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {
namespace {

// One number where all are alike, as the files write it.
Json OneOrMany(const std::vector<int32_t>& values) {
  const bool one = std::all_of(values.begin(), values.end(), [&](int32_t value) { return value == values[0]; });
  return one ? Json(values[0]) : Json(values);
}

Json Observed(const ModelConfig& config) {
  const ModelRouting& routing = config.routing;
  std::vector<int32_t> layers, experts, top_k, ids;
  for (const LayerRouting& layer : config.geometry.layers()) {
    layers.push_back(layer.layer_id);
    experts.push_back(layer.num_experts - routing.zero_experts);
    top_k.push_back(layer.top_k);
    ids.push_back(layer.num_experts);
  }
  return {{"num_layers", config.geometry.num_layers()},
          {"moe_layers", layers},
          {"num_experts", OneOrMany(experts)},
          {"top_k", OneOrMany(top_k)},
          {"zero_experts", routing.zero_experts},
          {"id_count", OneOrMany(ids)},
          {"hash_layers", routing.hash_layers},
          {"routers_per_layer", routing.routers_per_layer},
          {"mtp_layers", routing.mtp_layers}};
}

// null: not set.
Json ObservedRouting(const ModelRouting& routing) {
  constexpr const char* kScores[] = {"softmax", "sigmoid", "sqrtsoftplus"};
  Json observed;
  const auto set = [&](const char* name, const auto& value) {
    observed[name] = value.has_value() ? Json(*value) : Json();
  };
  observed["score_function"] =
      routing.score_function.has_value() ? Json(kScores[static_cast<int>(*routing.score_function)]) : Json();
  set("renormalized", routing.renormalized);
  set("scaling_factor", routing.scaling_factor);
  observed["expert_bias"] = Json();
  observed["bias_added_to"] = Json();
  if (routing.expert_bias.has_value()) {
    observed["expert_bias"] = *routing.expert_bias != ExpertBias::kNone;
    if (*routing.expert_bias == ExpertBias::kToScore) observed["bias_added_to"] = "score";
    if (*routing.expert_bias == ExpertBias::kToLogit) observed["bias_added_to"] = "logit";
  }
  observed["shared_experts"] = routing.shared_experts.has_value() ? Json(*routing.shared_experts > 0) : Json();
  for (const char* name : {"n_group", "topk_group", "group_score"}) observed[name] = Json();
  if (const auto& limit = routing.group_limit; limit.has_value()) {
    observed["n_group"] = limit->groups;
    observed["topk_group"] = limit->kept;
    observed["group_score"] = limit->best_summed == 1 ? "max" : absl::StrCat("top", limit->best_summed, "_sum");
  }
  return observed;
}

// The share of random rows whose choice the limit changes.
double ShareLimited(const GroupLimit& limit, int32_t num_experts, int32_t top_k) {
  constexpr int kRows = 2000;
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  const int32_t size = num_experts / limit.groups;
  int changed = 0;
  for (int row = 0; row < kRows; ++row) {
    std::vector<std::pair<double, int32_t>> experts, groups;  // Score, id.
    for (int32_t e = 0; e < num_experts; ++e) experts.emplace_back(1 / (1 + std::exp(-normal(random))), e);
    for (int32_t g = 0; g < limit.groups; ++g) {
      std::vector<std::pair<double, int32_t>> members(experts.begin() + g * size, experts.begin() + (g + 1) * size);
      std::sort(members.rbegin(), members.rend());
      double rank = 0;
      for (int32_t i = 0; i < std::min(limit.best_summed, size); ++i) rank += members[i].first;
      groups.emplace_back(rank, g);
    }
    std::sort(groups.rbegin(), groups.rend());
    std::sort(experts.rbegin(), experts.rend());
    changed += std::any_of(groups.begin() + limit.kept, groups.end(), [&](const auto& dropped) {
      return std::any_of(experts.begin(), experts.begin() + top_k,
                         [&](const auto& expert) { return expert.second / size == dropped.second; });
    });
  }
  return static_cast<double>(changed) / kRows;
}

// The files tell what random rows showed: a limit that hardly ever drops a chosen expert was not seen.
bool MayBeUnseen(const ModelConfig& config) {
  constexpr double kSeldom = 0.05;
  const LayerRouting& layer = config.geometry.layer(0);
  return config.routing.group_limit.has_value() &&
         ShareLimited(*config.routing.group_limit, layer.num_experts, layer.top_k) < kSeldom;
}

bool Same(const Json& ours, const Json& expected) {
  if (!ours.is_number() || !expected.is_number()) return ours == expected;
  return std::abs(ours.get<double>() - expected.get<double>()) < 1e-5;
}

Outcome CompareRouting(const ModelConfig& config, const Json& expect) {
  const Json ours = ObservedRouting(config.routing);
  for (const auto& [name, expected] : expect.items()) {
    if (!ours.contains(name)) return Failed(absl::StrCat("a routing fact \"", name, "\" is not known"));
    const bool group = name == "n_group" || name == "topk_group" || name == "group_score";
    if (ours[name].is_null() || Same(ours[name], expected)) continue;
    if (expected.is_null() && (!group || MayBeUnseen(config))) continue;
    return Failed(absl::StrCat("routing.", name, " is ", ours[name].dump(), ", expected ", expected.dump()));
  }
  return Passed();
}

Outcome Run(const Json& golden_case) {
  const Json& expect = golden_case.at("expect");
  const bool may_refuse = golden_case.value("may_refuse", false) || expect.value("may_refuse", false) ||
                          golden_case.at("input").value("may_refuse", false);
  const auto config = ModelConfigFromHuggingFace(golden_case.at("input").at("config").dump());
  if (expect.value("error", false)) {
    if (config.ok()) return Failed(absl::StrCat("accepted as ", config->geometry.DebugString(), ", expected an error"));
    const std::string reason = expect.value("reason", "");
    if (absl::StrContains(config.status().message(), reason)) return Passed();
    return Failed(absl::StrCat("refused with \"", config.status().message(), "\", expected \"", reason, "\""));
  }
  if (!config.ok()) {
    return may_refuse ? Passed() : Failed(absl::StrCat("refused: ", config.status().message()));
  }
  const Json ours = Observed(*config);
  for (const auto& [name, value] : ours.items()) {
    if (value == expect.at(name)) continue;
    return Failed(absl::StrCat(name, " is ", value.dump(), ", expected ", expect[name].dump()));
  }
  return CompareRouting(*config, expect.at("routing"));
}

}  // namespace

Kind GeometryKind() { return {{"geometry_"}, Run}; }

}  // namespace routing_replay::golden
