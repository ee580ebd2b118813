// Router replay on the CPU, and the checks of its arguments.
#include "routing_replay/trainer/router.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/replay/router_row.h"
#include "trainer_plugin/replay/row_math.h"

namespace routing_replay::trainer {

namespace {

static_assert(kMaxSlots == kMaxTopK, "per-row scratch must hold every row that the wire carries");

absl::Status InvalidRouter(Reason reason, absl::string_view field, absl::string_view what) {
  return Invalid(reason, absl::StrCat("router.", field), what);
}

absl::Status CheckInRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidRouter(Reason::kField, field, absl::StrCat(value, " is not in ", low, " … ", high));
}

// Checks that a tensor of `size` elements is [rows][width].
absl::Status CheckSize(absl::string_view field, uint64_t size, uint64_t rows, uint64_t width) {
  if (size % width == 0 && size / width == rows) return absl::OkStatus();
  return InvalidRouter(Reason::kShape, field, absl::StrCat(size, " elements are not ", rows, " rows of ", width));
}

absl::Status CheckOptionalSize(absl::string_view field, uint64_t size, uint64_t rows, uint64_t width) {
  return size == 0 ? absl::OkStatus() : CheckSize(field, size, rows, width);
}

// Bytes of a row of compact ids.
uint64_t RowBytes(const RouterConfig& config) { return static_cast<uint64_t>(config.top_k) * IdBytes(config); }

absl::Status CheckGroups(const RouterConfig& config) {
  RR_RETURN_IF_ERROR(CheckInRange("num_groups", config.num_groups, 1, std::min(kMaxGroups, config.num_experts)));
  const int32_t max_chosen = std::min(config.num_groups, config.top_k);
  RR_RETURN_IF_ERROR(CheckInRange("group_topk", config.group_topk, 1, max_chosen));
  if (config.num_experts % config.num_groups != 0) {
    return InvalidRouter(Reason::kField, "num_groups",
                         absl::StrCat("does not divide ", config.num_experts, " experts"));
  }
  const int32_t group_size = config.num_experts / config.num_groups;
  if (config.top_k > config.group_topk * group_size) {
    return InvalidRouter(
        Reason::kField, "group_topk",
        absl::StrCat(config.group_topk, " groups of ", group_size, " hold fewer than K = ", config.top_k));
  }
  return absl::OkStatus();
}

}  // namespace

int32_t IdBytes(const RouterConfig& config) { return LayerRouting{.num_experts = config.num_experts}.id_bytes(); }

absl::Status CheckRouterConfig(const RouterConfig& config) {
  RR_RETURN_IF_ERROR(CheckInRange("num_experts", config.num_experts, 1, kMaxExperts));
  RR_RETURN_IF_ERROR(CheckInRange("top_k", config.top_k, 1, std::min(kMaxTopK, config.num_experts)));
  if (config.pre_softmax && config.score_function != ScoreFunction::kSoftmax) {
    return InvalidRouter(Reason::kField, "pre_softmax", "needs the softmax score function");
  }
  if (!std::isfinite(config.scaling_factor)) return InvalidRouter(Reason::kField, "scaling_factor", "must be finite");
  return CheckGroups(config);
}

namespace {

template <typename D>
absl::Status CheckForward(const RouterConfig& config, const RouterForwardInput<D>& input,
                          const RouterForwardOutput<D>& output) {
  RR_RETURN_IF_ERROR(CheckRouterConfig(config));
  const uint64_t rows = input.states.size(), experts = config.num_experts;
  RR_RETURN_IF_ERROR(CheckSize("logits", input.logits.size(), rows, experts));
  RR_RETURN_IF_ERROR(CheckSize("indices", input.indices.size(), rows, RowBytes(config)));
  RR_RETURN_IF_ERROR(CheckOptionalSize("expert_bias", input.expert_bias.size(), 1, experts));
  RR_RETURN_IF_ERROR(CheckSize("probs", output.probs.size(), rows, experts));
  RR_RETURN_IF_ERROR(CheckSize("routing_map", output.routing_map.size(), rows, experts));
  return CheckOptionalSize("chosen", output.chosen.size(), rows, RowBytes(config));
}

template <typename D>
absl::Status CheckBackward(const RouterConfig& config, const RouterBackwardInput<D>& input, uint64_t grad_logits) {
  RR_RETURN_IF_ERROR(CheckRouterConfig(config));
  const uint64_t experts = config.num_experts, rows = input.logits.size() / experts;
  RR_RETURN_IF_ERROR(CheckSize("logits", input.logits.size(), rows, experts));
  RR_RETURN_IF_ERROR(CheckSize("chosen", input.chosen.size(), rows, RowBytes(config)));
  RR_RETURN_IF_ERROR(CheckSize("grad_probs", input.grad_probs.size(), rows, experts));
  return CheckSize("grad_logits", grad_logits, rows, experts);
}

template <typename T>
T* OrNull(absl::Span<T> tensor) {
  return tensor.empty() ? nullptr : tensor.data();
}

}  // namespace

template <typename D>
absl::Status RouterReplayForward(const RouterConfig& config, const RouterForwardInput<D>& input,
                                 const RouterForwardOutput<D>& output, RouterCounters& counters) {
  RR_RETURN_IF_ERROR(CheckForward(config, input, output));
  const RouterForwardTensors<D> tensors{.id_bytes = IdBytes(config),
                                        .logits = input.logits.data(),
                                        .indices = input.indices.data(),
                                        .states = input.states.data(),
                                        .expert_bias = OrNull(input.expert_bias),
                                        .probs = output.probs.data(),
                                        .routing_map = output.routing_map.data(),
                                        .chosen = OrNull(output.chosen)};
  WithArithmetic<D>(config.rounding, [&](auto math) {
    for (size_t row = 0; row < input.states.size(); ++row) {
      ++RowsOfState(counters, input.states[row]);
      counters.clamped_ids += ForwardRow<decltype(math)>(OneLane(), config, tensors, static_cast<int64_t>(row));
    }
  });
  return absl::OkStatus();
}

template <typename D>
absl::Status RouterReplayBackward(const RouterConfig& config, const RouterBackwardInput<D>& input,
                                  absl::Span<D> grad_logits, RouterCounters& counters) {
  RR_RETURN_IF_ERROR(CheckBackward(config, input, grad_logits.size()));
  const RouterBackwardTensors<D> tensors{.id_bytes = IdBytes(config),
                                         .logits = input.logits.data(),
                                         .chosen = input.chosen.data(),
                                         .grad_probs = input.grad_probs.data(),
                                         .grad_logits = grad_logits.data()};
  const int64_t rows = static_cast<int64_t>(input.logits.size()) / config.num_experts;
  WithArithmetic<D>(config.rounding, [&](auto math) {
    for (int64_t row = 0; row < rows; ++row) {
      counters.clamped_ids += BackwardRow<decltype(math)>(OneLane(), config, tensors, row);
    }
  });
  return absl::OkStatus();
}

#define RR_INSTANTIATE(D)                                                                                       \
  template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<D>&,                  \
                                            const RouterForwardOutput<D>&, RouterCounters&);                    \
  template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<D>&, absl::Span<D>, \
                                             RouterCounters&)
RR_INSTANTIATE(float);
RR_INSTANTIATE(double);
RR_INSTANTIATE(Bf16);
RR_INSTANTIATE(Fp16);
#undef RR_INSTANTIATE

}  // namespace routing_replay::trainer
