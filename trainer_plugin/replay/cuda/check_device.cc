// Can the kernels run here, and if not, what is missing?
#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/replay_cuda.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/replay/cuda/kernels.h"

namespace routing_replay::trainer {
namespace {

absl::Status Missing(absl::string_view what, absl::string_view message) {
  const std::string field = absl::StrCat("cuda.", what);
  return MakeError(absl::StatusCode::kFailedPrecondition, absl::StrCat(field, ": ", message), {.field = field});
}

// 13000: "13.0".
std::string VersionText(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

absl::Status NoDriver(cudaError_t error) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return Missing("driver", absl::StrCat("no driver of CUDA is here: ", cudaGetErrorString(error)));
  return Missing("driver", absl::StrCat("it is of CUDA ", VersionText(driver), ", and the kernels were built with ",
                                        VersionText(runtime), ": ", cudaGetErrorString(error)));
}

// With `device` as the current one.
absl::Status CheckCode(int32_t device) {
  cudaError_t error = cudaSuccess;
  for (const auto load :
       {LoadRealign, LoadRouterForward, LoadRouterBackward, LoadRecordLive, LoadRecordIds, LoadCompare}) {
    if (error == cudaSuccess) error = load();
  }
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // Or it would be that of the next launch.
  int major = 0, minor = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  return Missing("architecture", absl::StrCat("the kernels do not run on device ", device, " (compute capability ",
                                              major, ".", minor, "): ", cudaGetErrorString(error)));
}

}  // namespace

absl::Status CheckCudaDevice(int32_t device) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess && found != cudaErrorNoDevice) return NoDriver(found);
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

}  // namespace routing_replay::trainer
