// Router replay.
#include "routing_replay/trainer/router.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "trainer_plugin/capi/objects.h"
#include "trainer_plugin/replay/router_check.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

namespace {

absl::StatusOr<RouterConfig> ConfigFrom(const rrt_router& router, int64_t rows) {
  if (router.score_function < 0 || router.score_function > static_cast<int>(ScoreFunction::kSqrtSoftplus)) {
    return Invalid(Reason::kField, "router.score_function", "is none of softmax, sigmoid, sqrtsoftplus");
  }
  if (router.rounding < 0 || router.rounding > static_cast<int>(Rounding::kEachStep)) {
    return Invalid(Reason::kField, "router.rounding", "is none of once, each step");
  }
  if (rows < 0 || rows > kMaxLocalRows) {
    return Invalid(Reason::kField, "rows", absl::StrCat(rows, " is not in 0 … ", kMaxLocalRows));
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

// Calls `body` with a value of the dtype.
template <typename Body>
absl::Status WithDtype(int32_t dtype, Body&& body) {
  if (dtype == RRT_FLOAT32) return body(float());
  if (dtype == RRT_FLOAT64) return body(double());
  if (dtype == RRT_BFLOAT16) return body(Bf16());
  return Invalid(Reason::kField, "router.dtype", absl::StrCat(dtype, " is none of float32, float64, bfloat16"));
}

template <typename T>
absl::Span<const T> In(const void* data, int64_t count) {
  return {static_cast<const T*>(data), data == nullptr ? 0 : static_cast<size_t>(count)};
}
template <typename T>
absl::Span<T> Out(void* data, int64_t count) {
  return {static_cast<T*>(data), data == nullptr ? 0 : static_cast<size_t>(count)};
}

struct Tensor {
  absl::string_view name;
  const void* data;
};

absl::Status CheckThere(int64_t rows, std::initializer_list<Tensor> tensors) {
  for (const Tensor& tensor : tensors) {
    if (rows > 0 && tensor.data == nullptr) return Invalid(Reason::kField, tensor.name, "is NULL");
  }
  return absl::OkStatus();
}

absl::Status CheckStates(absl::Span<const uint8_t> states) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] > static_cast<uint8_t>(RowState::kPad)) {
      return Invalid(Reason::kField, "states", absl::StrCat(states[i], " of row ", i, " is no state"));
    }
  }
  return absl::OkStatus();
}

RouterCounters CountersFrom(const rrt_router_counters& counters) {
  return {counters.replayed_rows, counters.live_rows, counters.pad_rows, counters.clamped_ids,
          counters.zero_probabilities};
}

void Store(const RouterCounters& from, rrt_router_counters* to) {
  *to = {from.replayed_rows, from.live_rows, from.pad_rows, from.clamped_ids, from.zero_probabilities};
}

}  // namespace

rrt_error* rrt_router_forward(const rrt_router* router, int64_t rows, const void* logits, const void* indices,
                              const uint8_t* states, const float* expert_bias, void* probs, uint8_t* routing_map,
                              void* compact_probs, void* chosen, rrt_router_counters* counters) {
  return Guard([&]() -> absl::Status {
    const auto config = ConfigFrom(*router, rows);
    if (!config.ok()) return config.status();
    absl::Status valid = CheckThere(
        rows,
        {{"logits", logits}, {"indices", indices}, {"states", states}, {"probs", probs}, {"routing_map", routing_map}});
    valid.Update(CheckStates(In<uint8_t>(states, rows)));
    if (!valid.ok()) return valid;
    const int64_t experts = config->num_experts, slots = config->top_k, id_bytes = IdBytes(*config);
    RouterCounters counted = CountersFrom(*counters);
    const absl::Status status = WithDtype(router->dtype, [&](auto value) {
      using D = decltype(value);
      return RouterReplayForward<D>(*config,
                                    {.logits = In<D>(logits, rows * experts),
                                     .indices = In<uint8_t>(indices, rows * slots * id_bytes),
                                     .states = In<RowState>(states, rows),
                                     .expert_bias = In<float>(expert_bias, experts)},
                                    {.probs = Out<D>(probs, rows * experts),
                                     .routing_map = Out<uint8_t>(routing_map, rows * experts),
                                     .compact_probs = Out<D>(compact_probs, rows * slots),
                                     .chosen = Out<uint8_t>(chosen, rows * slots * id_bytes)},
                                    counted);
    });
    if (status.ok()) Store(counted, counters);
    return status;
  });
}

rrt_error* rrt_router_backward(const rrt_router* router, int64_t rows, const void* logits, const void* chosen,
                               const void* grad_probs, void* grad_logits, rrt_router_counters* counters) {
  return Guard([&]() -> absl::Status {
    const auto config = ConfigFrom(*router, rows);
    if (!config.ok()) return config.status();
    const absl::Status valid = CheckThere(
        rows, {{"logits", logits}, {"chosen", chosen}, {"grad_probs", grad_probs}, {"grad_logits", grad_logits}});
    if (!valid.ok()) return valid;
    const int64_t experts = config->num_experts, ids = rows * config->top_k * IdBytes(*config);
    RouterCounters counted = CountersFrom(*counters);
    const absl::Status status = WithDtype(router->dtype, [&](auto value) {
      using D = decltype(value);
      return RouterReplayBackward<D>(*config,
                                     {.logits = In<D>(logits, rows * experts),
                                      .chosen = In<uint8_t>(chosen, ids),
                                      .grad_probs = In<D>(grad_probs, rows * experts)},
                                     Out<D>(grad_logits, rows * experts), counted);
    });
    if (status.ok()) Store(counted, counters);
    return status;
  });
}
