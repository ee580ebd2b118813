// C functions for the kernels.
#include <utility>

#include "client/c_api/result.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/trainer/cuda_capi.h"
#include "routing_replay/trainer/replay_cuda.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/capi/router_config.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

namespace {

template <typename Body>
rr_error* Guard(Body&& body) noexcept {
  return c_api::NewError(c_api::WithoutExceptions([&]() -> c_api::CallEnd { return std::forward<Body>(body)(); }));
}

// Calls `body(configuration, dtype)`.
template <typename Body>
rr_error* WithRouter(const rrt_router& router, int64_t rows, Body&& body) noexcept {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(const auto config, RouterConfigFrom(router, rows));
    RR_ASSIGN_OR_RETURN(const auto dtype, RouterDtypeFrom(router));
    return body(config, dtype);
  });
}

CudaStream Stream(void* stream) { return static_cast<CudaStream>(stream); }
const uint8_t* Ids(const void* ids) { return static_cast<const uint8_t*>(ids); }
uint8_t* Ids(void* ids) { return static_cast<uint8_t*>(ids); }
const RowState* States(const uint8_t* states) { return reinterpret_cast<const RowState*>(states); }

}  // namespace

int32_t rrt_cuda_abi_version(void) { return RRT_CUDA_ABI_VERSION; }

rr_error* rrt_cuda_check_device(int32_t device) {
  return Guard([&] { return CheckCudaDevice(device); });
}

rr_error* rrt_cuda_realign(const void* block, int64_t staging_offset, int64_t units, void* indices, uint8_t* states,
                           void* stream) {
  return Guard([&] {
    return LaunchRealign({.packed_plan = Ids(block),
                          .staging = block == nullptr ? nullptr : Ids(block) + staging_offset,
                          .indices = Ids(indices),
                          .states = reinterpret_cast<RowState*>(states),
                          .units = units},
                         Stream(stream));
  });
}

rr_error* rrt_cuda_router_forward(const rrt_router* router, int64_t rows, const void* logits, const void* indices,
                                  const uint8_t* states, const float* expert_bias, void* probs, uint8_t* routing_map,
                                  void* chosen, rrt_router_counters* counters, void* stream) {
  return WithRouter(*router, rows, [&](const RouterConfig& config, Dtype dtype) {
    return LaunchRouterForward(config,
                               {.dtype = dtype,
                                .rows = rows,
                                .logits = logits,
                                .indices = Ids(indices),
                                .states = States(states),
                                .expert_bias = expert_bias,
                                .probs = probs,
                                .routing_map = routing_map,
                                .chosen = Ids(chosen),
                                .counters = Counters(counters)},
                               Stream(stream));
  });
}

rr_error* rrt_cuda_router_backward(const rrt_router* router, int64_t rows, const void* logits, const void* chosen,
                                   const void* grad_probs, void* grad_logits, rrt_router_counters* counters,
                                   void* stream) {
  return WithRouter(*router, rows, [&](const RouterConfig& config, Dtype dtype) {
    return LaunchRouterBackward(config,
                                {.dtype = dtype,
                                 .rows = rows,
                                 .logits = logits,
                                 .chosen = Ids(chosen),
                                 .grad_probs = grad_probs,
                                 .grad_logits = grad_logits,
                                 .counters = Counters(counters)},
                                Stream(stream));
  });
}
