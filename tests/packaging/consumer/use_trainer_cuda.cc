// Makes one router call on the GPU. On a machine without a GPU, the call must return an error that says so.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

#include "expect.h"
#include "routing_replay/trainer/cuda_capi.h"
#include "routing_replay/trainer/replay_cuda.h"

using namespace routing_replay::trainer;

namespace {

constexpr RouterConfig kConfig{.num_experts = 4, .top_k = 2};

template <typename T>
T* ToDevice(const std::vector<T>& values) {
  T* data = nullptr;
  EXPECT(cudaMalloc(reinterpret_cast<void**>(&data), values.size() * sizeof(T)) == cudaSuccess);
  EXPECT(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  return data;
}

void Route() {
  std::vector<float> probs(4, -1.0F);
  float* out = ToDevice(probs);
  EXPECT(LaunchRouterForward(kConfig,
                             {.rows = 1,
                              .logits = ToDevice(std::vector<float>{1, 1, 0, 0}),
                              .indices = ToDevice(std::vector<uint8_t>{1, 0}),
                              .states = ToDevice(std::vector<RowState>{RowState::kReplayed}),
                              .probs = out,
                              .routing_map = ToDevice(std::vector<uint8_t>(4))},
                             nullptr)
             .ok());
  EXPECT(cudaMemcpy(probs.data(), out, 4 * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess);
  EXPECT((probs == std::vector<float>{0.5F, 0.5F, 0, 0}));
}

}  // namespace

int main() {
  EXPECT(LaunchRouterForward(kConfig, {.rows = 0}, nullptr).ok());
  EXPECT(!LaunchRouterForward(kConfig, {.rows = 1}, nullptr).ok());
  const absl::Status fit = CheckCudaDevice(0);
  if (fit.ok()) {
    Route();
  } else {
    EXPECT(fit.code() == absl::StatusCode::kFailedPrecondition);
    std::printf("%s\n", std::string(fit.message()).c_str());
  }
}
