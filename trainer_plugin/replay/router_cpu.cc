// Router replay, record and compare on the CPU, and the checks of their arguments.
#include "trainer_plugin/replay/router_check.h"

#include <cmath>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/router.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/replay/router_row.h"
#include "trainer_plugin/replay/row_math.h"

namespace routing_replay::trainer {

namespace {

static_assert(kMaxSlots == kMaxTopK, "per-row scratch must hold every row that the wire carries");

absl::Status Reject(Reason reason, absl::string_view field, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("router.", field, ": ", what),
                   {.reason = reason, .field = absl::StrCat("router.", field)});
}

absl::Status CheckInRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Reject(Reason::kField, field, absl::StrCat(value, " is not in ", low, " … ", high));
}

// A tensor of `size` elements must be [rows][width].
absl::Status CheckSize(absl::string_view field, uint64_t size, uint64_t rows, uint64_t width) {
  if (size % width == 0 && size / width == rows) return absl::OkStatus();
  return Reject(Reason::kShape, field, absl::StrCat(size, " elements are not ", rows, " rows of ", width));
}

absl::Status CheckOptionalSize(absl::string_view field, uint64_t size, uint64_t rows, uint64_t width) {
  return size == 0 ? absl::OkStatus() : CheckSize(field, size, rows, width);
}

absl::Status FirstError(std::initializer_list<absl::Status> statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Of compact ids.
uint64_t RowBytes(const RouterConfig& config) { return static_cast<uint64_t>(config.top_k) * IdBytes(config); }

absl::Status CheckGroups(const RouterConfig& config) {
  if (auto s = CheckInRange("num_groups", config.num_groups, 1, std::min(kMaxGroups, config.num_experts)); !s.ok()) {
    return s;
  }
  const int32_t max_chosen = std::min(config.num_groups, config.top_k);
  if (auto s = CheckInRange("group_topk", config.group_topk, 1, max_chosen); !s.ok()) return s;
  if (config.num_experts % config.num_groups != 0) {
    return Reject(Reason::kField, "num_groups", absl::StrCat("does not divide ", config.num_experts, " experts"));
  }
  const int32_t group_size = config.num_experts / config.num_groups;
  if (config.top_k > config.group_topk * group_size) {
    return Reject(Reason::kField, "group_topk",
                  absl::StrCat(config.group_topk, " groups of ", group_size, " hold fewer than K = ", config.top_k));
  }
  return absl::OkStatus();
}

}  // namespace

int32_t IdBytes(const RouterConfig& config) { return LayerRouting{.num_experts = config.num_experts}.id_bytes(); }

absl::Status CheckRouterConfig(const RouterConfig& config) {
  if (auto s = CheckInRange("num_experts", config.num_experts, 1, kMaxExperts); !s.ok()) return s;
  if (auto s = CheckInRange("top_k", config.top_k, 1, std::min(kMaxTopK, config.num_experts)); !s.ok()) return s;
  if (config.score_function > ScoreFunction::kSqrtSoftplus) {
    return Reject(Reason::kField, "score_function", "must be softmax, sigmoid or sqrtsoftplus");
  }
  if (config.pre_softmax && config.score_function != ScoreFunction::kSoftmax) {
    return Reject(Reason::kField, "pre_softmax", "needs the softmax score function");
  }
  if (config.rounding > Rounding::kEachStep) return Reject(Reason::kField, "rounding", "must be once or each step");
  if (!std::isfinite(config.scaling_factor)) return Reject(Reason::kField, "scaling_factor", "is not finite");
  return CheckGroups(config);
}

absl::Status CheckForward(const RouterConfig& config, const ForwardSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t rows = sizes.states, experts = config.num_experts, slots = config.top_k;
  return FirstError({
      CheckSize("logits", sizes.logits, rows, experts),
      CheckSize("indices", sizes.indices, rows, RowBytes(config)),
      CheckOptionalSize("expert_bias", sizes.expert_bias, 1, experts),
      CheckSize("probs", sizes.probs, rows, experts),
      CheckSize("routing_map", sizes.routing_map, rows, experts),
      CheckOptionalSize("compact_probs", sizes.compact_probs, rows, slots),
      CheckOptionalSize("chosen", sizes.chosen, rows, RowBytes(config)),
  });
}

absl::Status CheckBackward(const RouterConfig& config, const BackwardSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t experts = config.num_experts, rows = sizes.logits / experts;
  return FirstError({
      CheckSize("logits", sizes.logits, rows, experts),
      CheckSize("chosen", sizes.chosen, rows, RowBytes(config)),
      CheckSize("grad_probs", sizes.grad_probs, rows, experts),
      CheckSize("grad_logits", sizes.grad_logits, rows, experts),
  });
}

absl::Status CheckRecord(const RouterConfig& config, const RecordSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t experts = config.num_experts, rows = sizes.logits / experts;
  return FirstError({
      CheckSize("logits", sizes.logits, rows, experts),
      CheckOptionalSize("expert_bias", sizes.expert_bias, 1, experts),
      CheckSize("indices", sizes.indices, rows, RowBytes(config)),
  });
}

absl::Status CheckRecordedIds(const RouterConfig& config, uint64_t ids, uint64_t indices) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t slots = config.top_k, rows = ids / slots;
  return FirstError({CheckSize("ids", ids, rows, slots), CheckSize("indices", indices, rows, RowBytes(config))});
}

absl::Status CheckCompare(const RouterConfig& config, const CompareSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  return FirstError({CheckSize("replayed", sizes.replayed, sizes.states, RowBytes(config)),
                     CheckSize("live", sizes.live, sizes.states, RowBytes(config))});
}

absl::Status CheckCompareLive(const RouterConfig& config, const CompareLiveSizes& sizes) {
  if (auto s = CheckRouterConfig(config); !s.ok()) return s;
  const uint64_t experts = config.num_experts;
  return FirstError({CheckSize("replayed", sizes.replayed, sizes.states, RowBytes(config)),
                     CheckSize("logits", sizes.logits, sizes.states, experts),
                     CheckOptionalSize("expert_bias", sizes.expert_bias, 1, experts)});
}

namespace {

template <typename Math, typename D>
void Forward(const RouterConfig& config, const RouterForwardInput<D>& input, const RouterForwardOutput<D>& output,
             RouterCounters& counters) {
  const RouterForwardTensors<D> tensors{
      .id_bytes = IdBytes(config),
      .logits = input.logits.data(),
      .indices = input.indices.data(),
      .states = input.states.data(),
      .expert_bias = input.expert_bias.empty() ? nullptr : input.expert_bias.data(),
      .probs = output.probs.data(),
      .routing_map = output.routing_map.data(),
      .compact_probs = output.compact_probs.empty() ? nullptr : output.compact_probs.data(),
      .chosen = output.chosen.empty() ? nullptr : output.chosen.data()};
  for (size_t row = 0; row < input.states.size(); ++row) {
    ++RowsOfState(counters, input.states[row]);
    const SlotCounts counts = ForwardRow<Math>(OneLane(), config, tensors, static_cast<int64_t>(row));
    counters.clamped_ids += counts.clamped_ids;
    counters.zero_probabilities += counts.zero_probabilities;
  }
}

}  // namespace

template <typename D>
absl::Status RouterReplayForward(const RouterConfig& config, const RouterForwardInput<D>& input,
                                 const RouterForwardOutput<D>& output, RouterCounters& counters) {
  const ForwardSizes sizes{.states = input.states.size(),
                           .logits = input.logits.size(),
                           .indices = input.indices.size(),
                           .expert_bias = input.expert_bias.size(),
                           .probs = output.probs.size(),
                           .routing_map = output.routing_map.size(),
                           .compact_probs = output.compact_probs.size(),
                           .chosen = output.chosen.size()};
  if (auto s = CheckForward(config, sizes); !s.ok()) return s;
  WithArithmetic<D>(config.rounding, [&](auto math) { Forward<decltype(math)>(config, input, output, counters); });
  return absl::OkStatus();
}

template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<float>&,
                                          const RouterForwardOutput<float>&, RouterCounters&);
template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<double>&,
                                          const RouterForwardOutput<double>&, RouterCounters&);
template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<Bf16>&,
                                          const RouterForwardOutput<Bf16>&, RouterCounters&);
template absl::Status RouterReplayForward(const RouterConfig&, const RouterForwardInput<Fp16>&,
                                          const RouterForwardOutput<Fp16>&, RouterCounters&);

namespace {

template <typename Math, typename D>
void Backward(const RouterConfig& config, const RouterBackwardInput<D>& input, absl::Span<D> grad_logits,
              RouterCounters& counters) {
  const RouterBackwardTensors<D> tensors{.id_bytes = IdBytes(config),
                                         .logits = input.logits.data(),
                                         .chosen = input.chosen.data(),
                                         .grad_probs = input.grad_probs.data(),
                                         .grad_logits = grad_logits.data()};
  const int64_t rows = static_cast<int64_t>(input.logits.size()) / config.num_experts;
  for (int64_t row = 0; row < rows; ++row) {
    counters.clamped_ids += BackwardRow<Math>(OneLane(), config, tensors, row).clamped_ids;
  }
}

}  // namespace

template <typename D>
absl::Status RouterReplayBackward(const RouterConfig& config, const RouterBackwardInput<D>& input,
                                  absl::Span<D> grad_logits, RouterCounters& counters) {
  const BackwardSizes sizes{.logits = input.logits.size(),
                            .chosen = input.chosen.size(),
                            .grad_probs = input.grad_probs.size(),
                            .grad_logits = grad_logits.size()};
  if (auto s = CheckBackward(config, sizes); !s.ok()) return s;
  WithArithmetic<D>(config.rounding,
                    [&](auto math) { Backward<decltype(math)>(config, input, grad_logits, counters); });
  return absl::OkStatus();
}

template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<float>&, absl::Span<float>,
                                           RouterCounters&);
template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<double>&, absl::Span<double>,
                                           RouterCounters&);
template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<Bf16>&, absl::Span<Bf16>,
                                           RouterCounters&);
template absl::Status RouterReplayBackward(const RouterConfig&, const RouterBackwardInput<Fp16>&, absl::Span<Fp16>,
                                           RouterCounters&);

template <typename D>
absl::Status RecordLive(const RouterConfig& config, absl::Span<const D> logits, absl::Span<const float> expert_bias,
                        absl::Span<uint8_t> indices) {
  if (auto s = CheckRecord(config, {logits.size(), expert_bias.size(), indices.size()}); !s.ok()) return s;
  const RecordTensors<const D*> tensors{.id_bytes = IdBytes(config),
                                        .logits = logits.data(),
                                        .expert_bias = expert_bias.empty() ? nullptr : expert_bias.data(),
                                        .indices = indices.data()};
  const int64_t rows = static_cast<int64_t>(logits.size()) / config.num_experts;
  WithArithmetic<D>(config.rounding, [&](auto math) {
    for (int64_t row = 0; row < rows; ++row) RecordRow<decltype(math)>(OneLane(), config, tensors, row);
  });
  return absl::OkStatus();
}

template <typename Id>
absl::Status RecordIds(const RouterConfig& config, absl::Span<const Id> ids, absl::Span<uint8_t> indices,
                       int64_t& clamped_ids) {
  if (auto s = CheckRecordedIds(config, ids.size(), indices.size()); !s.ok()) return s;
  const int32_t id_bytes = IdBytes(config);
  for (size_t i = 0; i < ids.size(); ++i) {
    clamped_ids += RecordId(ids.data(), static_cast<int64_t>(i), config.num_experts, id_bytes, indices.data());
  }
  return absl::OkStatus();
}

#define RR_INSTANTIATE(D)                                                                             \
  template absl::Status RecordLive(const RouterConfig&, absl::Span<const D>, absl::Span<const float>, \
                                   absl::Span<uint8_t>)
RR_INSTANTIATE(float);
RR_INSTANTIATE(double);
RR_INSTANTIATE(Bf16);
RR_INSTANTIATE(Fp16);
#undef RR_INSTANTIATE

#define RR_INSTANTIATE(Id) \
  template absl::Status RecordIds(const RouterConfig&, absl::Span<const Id>, absl::Span<uint8_t>, int64_t&)
RR_INSTANTIATE(int64_t);
RR_INSTANTIATE(int32_t);
RR_INSTANTIATE(int16_t);
RR_INSTANTIATE(uint8_t);
#undef RR_INSTANTIATE

namespace {

template <typename Math, typename D>
void Compare(const RouterConfig& config, const CompareTensors<const D*>& tensors, size_t rows,
             CompareCounters& counters) {
  for (size_t row = 0; row < rows; ++row) {
    const RowComparison one = CompareRow<Math>(OneLane(), config, tensors, static_cast<int64_t>(row));
    counters.rows += one.rows;
    counters.different_rows += one.different_rows;
    counters.disjoint_rows += one.disjoint_rows;
    counters.common_ids += one.common_ids;
  }
}

}  // namespace

absl::Status CompareChoices(const RouterConfig& config, absl::Span<const uint8_t> replayed,
                            absl::Span<const uint8_t> live, absl::Span<const RowState> states,
                            CompareCounters& counters) {
  const CompareSizes sizes{.states = states.size(), .replayed = replayed.size(), .live = live.size()};
  if (auto s = CheckCompare(config, sizes); !s.ok()) return s;
  Compare<FloatArithmetic<float>>(
      config,
      CompareTensors<const float*>{
          .id_bytes = IdBytes(config), .replayed = replayed.data(), .states = states.data(), .live = live.data()},
      states.size(), counters);
  return absl::OkStatus();
}

template <typename D>
absl::Status CompareWithLive(const RouterConfig& config, absl::Span<const D> logits,
                             absl::Span<const float> expert_bias, absl::Span<const uint8_t> replayed,
                             absl::Span<const RowState> states, CompareCounters& counters) {
  const CompareLiveSizes sizes{
      .states = states.size(), .replayed = replayed.size(), .logits = logits.size(), .expert_bias = expert_bias.size()};
  if (auto s = CheckCompareLive(config, sizes); !s.ok()) return s;
  const CompareTensors<const D*> tensors{.id_bytes = IdBytes(config),
                                         .replayed = replayed.data(),
                                         .states = states.data(),
                                         .logits = logits.data(),
                                         .expert_bias = expert_bias.empty() ? nullptr : expert_bias.data()};
  WithArithmetic<D>(config.rounding,
                    [&](auto math) { Compare<decltype(math)>(config, tensors, states.size(), counters); });
  return absl::OkStatus();
}

#define RR_INSTANTIATE(D)                                                                                  \
  template absl::Status CompareWithLive(const RouterConfig&, absl::Span<const D>, absl::Span<const float>, \
                                        absl::Span<const uint8_t>, absl::Span<const RowState>, CompareCounters&)
RR_INSTANTIATE(float);
RR_INSTANTIATE(double);
RR_INSTANTIATE(Bf16);
RR_INSTANTIATE(Fp16);
#undef RR_INSTANTIATE

}  // namespace routing_replay::trainer
