#include "routing_replay/trainer/replay_cuda.h"

#include <cuda_runtime_api.h>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/router.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/replay/cuda/kernels.h"

namespace routing_replay::trainer {

namespace {

absl::Status Missing(absl::string_view what, absl::string_view message) {
  const std::string field = absl::StrCat("cuda.", what);
  return MakeError(absl::StatusCode::kFailedPrecondition, absl::StrCat(field, ": ", message), {.field = field});
}

// Returns an error if the kernels do not run on `device`, which must be the current one.
absl::Status CheckCode(int32_t device) {
  const cudaError_t error = LoadKernels();
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // Clears the error, which the next launch would report otherwise.
  return Missing("architecture",
                 absl::StrCat("the kernels do not run on device ", device, ": ", cudaGetErrorString(error)));
}

}  // namespace

absl::Status CheckCudaDevice(int32_t device) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess) cudaGetLastError();  // Otherwise the next check of a launch would report this error.
  if (found != cudaSuccess && found != cudaErrorNoDevice) return Missing("driver", cudaGetErrorString(found));
  if (device < 0 || device >= devices) {
    return Missing("device", absl::StrCat("there is no device ", device, " among ", devices));
  }
  int before = 0;
  cudaGetDevice(&before);
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    cudaGetLastError();
    return Missing("device", absl::StrCat("device ", device, " cannot be used: ", cudaGetErrorString(error)));
  }
  absl::Status status = CheckCode(device);
  cudaSetDevice(before);
  return status;
}

namespace {

absl::Status Reject(absl::string_view call, absl::string_view field, absl::string_view what) {
  return Invalid(absl::StrCat(call, ".", field), what);
}

struct Pointer {
  absl::string_view name;
  const void* address;
};

absl::Status CheckThere(absl::string_view call, std::initializer_list<Pointer> pointers) {
  for (const Pointer& pointer : pointers) {
    if (pointer.address == nullptr) return Reject(call, pointer.name, "is null");
  }
  return absl::OkStatus();
}

// The checks that all router calls share. Without rows, pointers are not checked.
absl::Status CheckCall(absl::string_view call, const RouterConfig& config, int64_t rows,
                       std::initializer_list<Pointer> pointers) {
  absl::Status status = CheckRouterConfig(config);
  if (rows < 0 || rows > kMaxLocalRows) {
    status.Update(Reject(call, "rows", absl::StrCat(rows, " is not in 0 … ", kMaxLocalRows)));
  }
  if (status.ok() && rows > 0) status = CheckThere(call, pointers);
  return status;
}

absl::Status Launched(absl::string_view call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

}  // namespace

absl::Status LaunchRealign(const CudaRealign& call, CudaStream stream) {
  constexpr absl::string_view kCall = "realign";
  if (call.units < 0) return Reject(kCall, "units", "is negative");
  // `indices` and `staging` may be null: a rank without layers has no index buffer, and a rank without recorded rows
  // has nothing staged.
  if (auto s = CheckThere(kCall, {{"packed_plan", call.packed_plan}, {"states", call.states}}); !s.ok()) return s;
  if (reinterpret_cast<uintptr_t>(call.packed_plan) % kPackedPlanAlignment != 0) {
    return Reject(kCall, "packed_plan", absl::StrCat("must be aligned to ", kPackedPlanAlignment));
  }
  return Launched(kCall, RunRealign(call, stream));
}

absl::Status LaunchRouterForward(const RouterConfig& config, const CudaRouterForward& call, CudaStream stream) {
  constexpr absl::string_view kCall = "router_forward";
  absl::Status valid = CheckCall(kCall, config, call.rows,
                                 {{"logits", call.logits},
                                  {"indices", call.indices},
                                  {"states", call.states},
                                  {"probs", call.probs},
                                  {"routing_map", call.routing_map}});
  if (!valid.ok() || call.rows == 0) return valid;
  return Launched(kCall, RunRouterForward(config, call, stream));
}

absl::Status LaunchRouterBackward(const RouterConfig& config, const CudaRouterBackward& call, CudaStream stream) {
  constexpr absl::string_view kCall = "router_backward";
  absl::Status valid = CheckCall(kCall, config, call.rows,
                                 {{"logits", call.logits},
                                  {"chosen", call.chosen},
                                  {"grad_probs", call.grad_probs},
                                  {"grad_logits", call.grad_logits}});
  if (!valid.ok() || call.rows == 0) return valid;
  return Launched(kCall, RunRouterBackward(config, call, stream));
}

}  // namespace routing_replay::trainer
