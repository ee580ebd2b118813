#include "routing_replay/trainer/compare.h"
#include "trainer_plugin/replay/compare_row.h"
#include "trainer_plugin/replay/router_check.h"

namespace routing_replay::trainer {
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
