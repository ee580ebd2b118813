#include "trainer_plugin/capi/router_config.h"

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/realign.h"
#include "trainer_plugin/capi/boundary.h"
#include "trainer_plugin/replay/router_check.h"

namespace routing_replay::capi {

using trainer::Dtype;
using trainer::Rounding;
using trainer::RouterConfig;
using trainer::ScoreFunction;

static_assert(RRT_FLOAT32 == static_cast<int>(Dtype::kFloat32) && RRT_FLOAT64 == static_cast<int>(Dtype::kFloat64) &&
              RRT_BFLOAT16 == static_cast<int>(Dtype::kBfloat16) && RRT_FLOAT16 == static_cast<int>(Dtype::kFloat16));

absl::StatusOr<RouterConfig> RouterConfigFrom(const rrt_router& router, int64_t rows) {
  if (router.score_function < 0 || router.score_function > static_cast<int>(ScoreFunction::kSqrtSoftplus)) {
    return Invalid(Reason::kField, "router.score_function", "is none of softmax, sigmoid, sqrtsoftplus");
  }
  if (router.rounding < 0 || router.rounding > static_cast<int>(Rounding::kEachStep)) {
    return Invalid(Reason::kField, "router.rounding", "is none of once, each step");
  }
  if (rows < 0 || rows > trainer::kMaxLocalRows) {
    return Invalid(Reason::kField, "rows", absl::StrCat(rows, " is not in 0 … ", trainer::kMaxLocalRows));
  }
  RouterConfig config{.score_function = static_cast<ScoreFunction>(router.score_function),
                      .pre_softmax = router.pre_softmax != 0,
                      .num_experts = router.num_experts,
                      .top_k = router.top_k,
                      .scaling_factor = router.scaling_factor,
                      .rounding = static_cast<Rounding>(router.rounding),
                      .num_groups = router.num_groups,
                      .group_topk = router.group_topk};
  if (absl::Status status = CheckRouterConfig(config); !status.ok()) return status;
  return config;
}

absl::StatusOr<Dtype> RouterDtypeFrom(const rrt_router& router) {
  if (router.dtype >= RRT_FLOAT32 && router.dtype <= RRT_FLOAT16) return static_cast<Dtype>(router.dtype);
  return Invalid(Reason::kField, "router.dtype",
                 absl::StrCat(router.dtype, " is none of float32, float64, bfloat16, float16"));
}

}  // namespace routing_replay::capi
