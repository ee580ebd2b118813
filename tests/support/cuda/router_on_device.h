// Router replay on the GPU with the CPU's interface: copies tensors to the device, launches once, and copies the
// results back.
#ifndef TESTS_SUPPORT_CUDA_ROUTER_ON_DEVICE_H_
#define TESTS_SUPPORT_CUDA_ROUTER_ON_DEVICE_H_

#include <type_traits>

#include "routing_replay/trainer/replay_cuda.h"
#include "routing_replay/trainer/router.h"
#include "tests/support/cuda/device_array.h"

namespace routing_replay::testing {

template <typename D>
constexpr trainer::Dtype DtypeOf() {
  if constexpr (std::is_same_v<D, float>) return trainer::Dtype::kFloat32;
  if constexpr (std::is_same_v<D, double>) return trainer::Dtype::kFloat64;
  if constexpr (std::is_same_v<D, trainer::Bf16>) return trainer::Dtype::kBfloat16;
  if constexpr (std::is_same_v<D, trainer::Fp16>) return trainer::Dtype::kFloat16;
}

inline void AddTo(trainer::RouterCounters& sum, const trainer::RouterCounters& counters) {
  sum.replayed_rows += counters.replayed_rows;
  sum.live_rows += counters.live_rows;
  sum.pad_rows += counters.pad_rows;
  sum.clamped_ids += counters.clamped_ids;
}

// Like RouterReplayForward. Outputs are filled with 0xCD first, to reveal elements that are not written.
template <typename D>
absl::Status ForwardOnDevice(const trainer::RouterConfig& config, const trainer::RouterForwardInput<D>& input,
                             const trainer::RouterForwardOutput<D>& output, trainer::RouterCounters& counters) {
  const DeviceArray<D> logits(input.logits);
  const DeviceArray<uint8_t> indices(input.indices);
  const DeviceArray<trainer::RowState> states(input.states);
  const DeviceArray<float> bias(input.expert_bias);
  DeviceArray<D> probs(output.probs.size());
  DeviceArray<uint8_t> map(output.routing_map.size()), chosen(output.chosen.size());
  probs.Fill(0xCD), map.Fill(0xCD), chosen.Fill(0xCD);
  const DeviceCounters<trainer::RouterCounters> counted;
  absl::Status status = trainer::LaunchRouterForward(config,
                                                     {.dtype = DtypeOf<D>(),
                                                      .rows = static_cast<int64_t>(input.states.size()),
                                                      .logits = logits.data(),
                                                      .indices = indices.data(),
                                                      .states = states.data(),
                                                      .expert_bias = bias.data(),
                                                      .probs = probs.data(),
                                                      .routing_map = map.data(),
                                                      .chosen = chosen.data(),
                                                      .counters = counted.data()},
                                                     nullptr);
  probs.Download(output.probs), map.Download(output.routing_map), chosen.Download(output.chosen);
  AddTo(counters, counted.Read());
  return status;
}

// Like RouterReplayBackward.
template <typename D>
absl::Status BackwardOnDevice(const trainer::RouterConfig& config, const trainer::RouterBackwardInput<D>& input,
                              absl::Span<D> grad_logits, trainer::RouterCounters& counters) {
  const DeviceArray<D> logits(input.logits), grad_probs(input.grad_probs);
  const DeviceArray<uint8_t> chosen(input.chosen);
  DeviceArray<D> grads(grad_logits.size());
  grads.Fill(0xCD);
  const DeviceCounters<trainer::RouterCounters> counted;
  absl::Status status =
      trainer::LaunchRouterBackward(config,
                                    {.dtype = DtypeOf<D>(),
                                     .rows = static_cast<int64_t>(input.logits.size()) / config.num_experts,
                                     .logits = logits.data(),
                                     .chosen = chosen.data(),
                                     .grad_probs = grad_probs.data(),
                                     .grad_logits = grads.data(),
                                     .counters = counted.data()},
                                    nullptr);
  grads.Download(grad_logits);
  AddTo(counters, counted.Read());
  return status;
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_CUDA_ROUTER_ON_DEVICE_H_
