// Evaluates what a family says of its routers on one configuration.
#ifndef PROTO_WIRE_MODEL_CONFIG_ROUTER_FACTS_H_
#define PROTO_WIRE_MODEL_CONFIG_ROUTER_FACTS_H_

#include "proto/wire/model_config/config_reader.h"
#include "proto/wire/model_config/families.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/model_config.h"

namespace routing_replay {
inline namespace wire {

// Sets score_function, renormalized, scaling_factor, group_limit, expert_bias and shared_experts. What is wrong is told
// by the reader's status().
void ReadRouterFacts(const RouterFacts& facts, const Geometry& geometry, ConfigReader& reader, ModelRouting& routing);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MODEL_CONFIG_ROUTER_FACTS_H_
