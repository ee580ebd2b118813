// A model's routing facts as JSON; what is not set is null:
//
//   {"model_type": "deepseek_v3", "score_function": "softmax" | "sigmoid" | "sqrtsoftplus", "renormalized": true,
//    "scaling_factor": 2.5, "group_limit": {"groups": 8, "kept": 4, "best_summed": 2},
//    "expert_bias": "none" | "to_score" | "to_logit", "shared_experts": 1, "mtp_layers": 1, "zero_experts": 0,
//    "hash_layers": [], "routers_per_layer": 1, "sources": {"num_experts": "n_routed_experts", …}}
#ifndef PROTO_JSON_MODEL_CONFIG_JSON_H_
#define PROTO_JSON_MODEL_CONFIG_JSON_H_

#include <nlohmann/json.hpp>

#include "routing_replay/wire/model_config.h"

namespace routing_replay {
inline namespace wire {

nlohmann::json ModelRoutingToJson(const ModelRouting& routing);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_MODEL_CONFIG_JSON_H_
