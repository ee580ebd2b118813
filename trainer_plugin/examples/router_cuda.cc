// A trainer has all of this on its GPU already, and its stream. Here it is copied there and back.
#include <cuda_runtime_api.h>

#include <memory>

#include "router.h"
#include "routing_replay/trainer/replay_cuda.h"

using namespace routing_replay::trainer;

namespace {

struct Free {
  void operator()(void* memory) const { cudaFree(memory); }
};

// A copy on the device; a null address where there is no memory for it, which the calls below refuse.
template <typename Values>
std::unique_ptr<typename Values::value_type, Free> OnDevice(const Values& values) {
  void* memory = nullptr;
  const size_t bytes = values.size() * sizeof(typename Values::value_type);
  if (cudaMalloc(&memory, bytes) == cudaSuccess) cudaMemcpy(memory, values.data(), bytes, cudaMemcpyHostToDevice);
  return std::unique_ptr<typename Values::value_type, Free>(static_cast<typename Values::value_type*>(memory));
}

template <typename T>
cudaError_t Back(const T* device, std::vector<T>& host) {
  return cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDeviceToHost);
}

}  // namespace

absl::StatusOr<RouterOutput> RunRouter(const RouterInput& input) {
  RouterOutput out(input);
  std::vector<RouterCounters> counters(1);
  const auto logits = OnDevice(input.logits), grad_probs = OnDevice(input.grad_probs);
  const auto indices = OnDevice(input.indices);
  const auto states = OnDevice(input.states);
  const auto probs = OnDevice(out.probs), grad_logits = OnDevice(out.grad_logits);
  const auto routing_map = OnDevice(out.routing_map), chosen = OnDevice(out.chosen);
  const auto counted = OnDevice(counters);
  const auto rows = static_cast<int64_t>(input.states.size());
  const CudaStream stream = nullptr;
  absl::Status status = LaunchRouterForward(input.config,
                                            {.rows = rows,
                                             .logits = logits.get(),
                                             .indices = indices.get(),
                                             .states = states.get(),
                                             .probs = probs.get(),
                                             .routing_map = routing_map.get(),
                                             .chosen = chosen.get(),
                                             .counters = counted.get()},
                                            stream);
  status.Update(LaunchRouterBackward(input.config,
                                     {.rows = rows,
                                      .logits = logits.get(),
                                      .chosen = chosen.get(),
                                      .grad_probs = grad_probs.get(),
                                      .grad_logits = grad_logits.get(),
                                      .counters = counted.get()},
                                     stream));
  if (!status.ok()) return status;
  cudaError_t error = Back(probs.get(), out.probs);
  if (error == cudaSuccess) error = Back(routing_map.get(), out.routing_map);
  if (error == cudaSuccess) error = Back(grad_logits.get(), out.grad_logits);
  if (error == cudaSuccess) error = Back(counted.get(), counters);
  if (error != cudaSuccess) return absl::InternalError(cudaGetErrorString(error));
  out.counters = counters[0];
  return out;
}
