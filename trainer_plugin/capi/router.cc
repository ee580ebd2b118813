// C functions for router replay.
#include "routing_replay/trainer/router.h"

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "trainer_plugin/capi/objects.h"
#include "trainer_plugin/capi/router_config.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

namespace {

// Calls `body` with a value of the C++ type that has this dtype.
template <typename Body>
absl::Status WithDtype(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat32:  // NOLINT(bugprone-branch-clone): each calls with another type.
      return body(float());
    case Dtype::kFloat64:
      return body(double());
    case Dtype::kBfloat16:
      return body(Bf16());
    case Dtype::kFloat16:
      return body(Fp16());
  }
  return absl::InternalError("unknown dtype");
}

// A NULL tensor has no elements, so the router rejects it for its size.
template <typename T>
absl::Span<const T> In(const void* data, int64_t count) {
  return {static_cast<const T*>(data), data == nullptr ? 0 : static_cast<size_t>(count)};
}
template <typename T>
absl::Span<T> Out(void* data, int64_t count) {
  return {static_cast<T*>(data), data == nullptr ? 0 : static_cast<size_t>(count)};
}

absl::Status CheckStates(absl::Span<const uint8_t> states) {
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] > static_cast<uint8_t>(RowState::kLive)) {
      return Invalid(Reason::kField, "states", absl::StrCat(states[i], " of row ", i, " is not a state"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

rr_error* rrt_router_forward(const rrt_router* router, int64_t rows, const void* logits, const void* indices,
                             const uint8_t* states, const float* expert_bias, void* probs, uint8_t* routing_map,
                             void* chosen, rrt_router_counters* counters) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(const auto config, RouterConfigFrom(*router, rows));
    RR_ASSIGN_OR_RETURN(const auto dtype, RouterDtypeFrom(*router));
    RR_RETURN_IF_ERROR(CheckStates(In<uint8_t>(states, rows)));
    const int64_t experts = config.num_experts, slots = config.top_k, id_bytes = IdBytes(config);
    return WithDtype(dtype, [&](auto value) {
      using D = decltype(value);
      return RouterReplayForward<D>(config,
                                    {.logits = In<D>(logits, rows * experts),
                                     .indices = In<uint8_t>(indices, rows * slots * id_bytes),
                                     .states = In<RowState>(states, rows),
                                     .expert_bias = In<float>(expert_bias, experts)},
                                    {.probs = Out<D>(probs, rows * experts),
                                     .routing_map = Out<uint8_t>(routing_map, rows * experts),
                                     .chosen = Out<uint8_t>(chosen, rows * slots * id_bytes)},
                                    *Counters(counters));
    });
  });
}

rr_error* rrt_router_backward(const rrt_router* router, int64_t rows, const void* logits, const void* chosen,
                              const void* grad_probs, void* grad_logits, rrt_router_counters* counters) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(const auto config, RouterConfigFrom(*router, rows));
    RR_ASSIGN_OR_RETURN(const auto dtype, RouterDtypeFrom(*router));
    const int64_t experts = config.num_experts, ids = rows * config.top_k * IdBytes(config);
    return WithDtype(dtype, [&](auto value) {
      using D = decltype(value);
      return RouterReplayBackward<D>(config,
                                     {.logits = In<D>(logits, rows * experts),
                                      .chosen = In<uint8_t>(chosen, ids),
                                      .grad_probs = In<D>(grad_probs, rows * experts)},
                                     Out<D>(grad_logits, rows * experts), *Counters(counters));
    });
  });
}
