#include "proto/json/model_config_json.h"

namespace routing_replay {
inline namespace wire {
namespace {

using nlohmann::json;

json ToJson(RouterScore score) {
  switch (score) {
    case RouterScore::kSoftmax:
      return "softmax";
    case RouterScore::kSigmoid:
      return "sigmoid";
    case RouterScore::kSqrtSoftplus:
      return "sqrtsoftplus";
  }
  return {};
}

json ToJson(ExpertBias bias) {
  switch (bias) {
    case ExpertBias::kNone:
      return "none";
    case ExpertBias::kToScore:
      return "to_score";
    case ExpertBias::kToLogit:
      return "to_logit";
  }
  return {};
}

json ToJson(const GroupLimit& limit) {
  return {{"groups", limit.groups}, {"kept", limit.kept}, {"best_summed", limit.best_summed}};
}

json ToJson(bool value) { return value; }
json ToJson(int32_t value) { return value; }
json ToJson(double value) { return value; }

template <typename Value>
json ToJson(const std::optional<Value>& value) {
  return value.has_value() ? ToJson(*value) : json();
}

}  // namespace

json ModelRoutingToJson(const ModelRouting& routing) {
  return {{"model_type", routing.model_type},
          {"score_function", ToJson(routing.score_function)},
          {"renormalized", ToJson(routing.renormalized)},
          {"scaling_factor", ToJson(routing.scaling_factor)},
          {"group_limit", ToJson(routing.group_limit)},
          {"expert_bias", ToJson(routing.expert_bias)},
          {"shared_experts", ToJson(routing.shared_experts)},
          {"mtp_layers", routing.mtp_layers},
          {"zero_experts", routing.zero_experts},
          {"hash_layers", routing.hash_layers},
          {"routers_per_layer", routing.routers_per_layer},
          {"sources", routing.sources}};
}

}  // namespace wire
}  // namespace routing_replay
