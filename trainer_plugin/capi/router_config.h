// rrt_router, as all C interfaces of the router read it.
#ifndef TRAINER_PLUGIN_CAPI_ROUTER_CONFIG_H_
#define TRAINER_PLUGIN_CAPI_ROUTER_CONFIG_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/capi.h"
#include "routing_replay/trainer/router_config.h"

namespace routing_replay::capi {

// A checked configuration, for this many rows. INVALID_ARGUMENT naming the field.
absl::StatusOr<trainer::RouterConfig> RouterConfigFrom(const rrt_router& router, int64_t rows);

// INVALID_ARGUMENT unless it is one of RRT_FLOAT32 and so on.
absl::StatusOr<trainer::Dtype> RouterDtypeFrom(const rrt_router& router);

}  // namespace routing_replay::capi

#endif  // TRAINER_PLUGIN_CAPI_ROUTER_CONFIG_H_
