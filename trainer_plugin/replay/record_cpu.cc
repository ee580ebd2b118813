#include "routing_replay/trainer/record.h"
#include "trainer_plugin/replay/record_row.h"
#include "trainer_plugin/replay/router_check.h"

namespace routing_replay::trainer {

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

}  // namespace routing_replay::trainer
