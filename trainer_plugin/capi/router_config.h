// Converts rrt_router and rrt_router_counters for all C functions of the router.
#ifndef TRAINER_PLUGIN_CAPI_ROUTER_CONFIG_H_
#define TRAINER_PLUGIN_CAPI_ROUTER_CONFIG_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/capi.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/router.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::capi {

static_assert(RRT_FLOAT32 == static_cast<int>(trainer::Dtype::kFloat32) &&
              RRT_FLOAT64 == static_cast<int>(trainer::Dtype::kFloat64) &&
              RRT_BFLOAT16 == static_cast<int>(trainer::Dtype::kBfloat16) &&
              RRT_FLOAT16 == static_cast<int>(trainer::Dtype::kFloat16));

// The router adds to the C++ struct, and callers read the C struct at the same address, so both have the same layout.
static_assert(sizeof(rrt_router_counters) == sizeof(trainer::RouterCounters) &&
              offsetof(rrt_router_counters, clamped_ids) == offsetof(trainer::RouterCounters, clamped_ids) &&
              offsetof(rrt_router_counters, pad_rows) == offsetof(trainer::RouterCounters, pad_rows) &&
              offsetof(rrt_router_counters, live_rows) == offsetof(trainer::RouterCounters, live_rows));
inline trainer::RouterCounters* Counters(rrt_router_counters* counters) {
  return reinterpret_cast<trainer::RouterCounters*>(counters);
}

// Converts and checks the configuration and the number of rows. INVALID_ARGUMENT naming the field.
inline absl::StatusOr<trainer::RouterConfig> RouterConfigFrom(const rrt_router& router, int64_t rows) {
  if (router.score_function < 0 || router.score_function > static_cast<int>(trainer::ScoreFunction::kSqrtSoftplus)) {
    return Invalid(Reason::kField, "router.score_function", "must be softmax, sigmoid or sqrtsoftplus");
  }
  if (router.rounding < 0 || router.rounding > static_cast<int>(trainer::Rounding::kEachStep)) {
    return Invalid(Reason::kField, "router.rounding", "must be once or each step");
  }
  if (rows < 0 || rows > trainer::kMaxLocalRows) {
    return Invalid(Reason::kField, "rows", absl::StrCat(rows, " is not in 0 … ", trainer::kMaxLocalRows));
  }
  trainer::RouterConfig config{.score_function = static_cast<trainer::ScoreFunction>(router.score_function),
                               .pre_softmax = router.pre_softmax != 0,
                               .num_experts = router.num_experts,
                               .top_k = router.top_k,
                               .scaling_factor = router.scaling_factor,
                               .rounding = static_cast<trainer::Rounding>(router.rounding),
                               .num_groups = router.num_groups,
                               .group_topk = router.group_topk};
  if (absl::Status status = CheckRouterConfig(config); !status.ok()) return status;
  return config;
}

// INVALID_ARGUMENT unless `dtype` is one of RRT_FLOAT32, RRT_FLOAT64, RRT_BFLOAT16 and RRT_FLOAT16.
inline absl::StatusOr<trainer::Dtype> RouterDtypeFrom(const rrt_router& router) {
  if (router.dtype >= RRT_FLOAT32 && router.dtype <= RRT_FLOAT16) return static_cast<trainer::Dtype>(router.dtype);
  return Invalid(Reason::kField, "router.dtype",
                 absl::StrCat(router.dtype, " is not float32, float64, bfloat16 or float16"));
}

}  // namespace routing_replay::capi

#endif  // TRAINER_PLUGIN_CAPI_ROUTER_CONFIG_H_
