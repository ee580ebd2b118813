#include "client/appender/plan_appender.h"

#include "client/server_limits.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {

absl::StatusOr<AppendPlan> PlanAppender::Plan(const AppendOptions& options, const TensorDescription* tensor,
                                              absl::Span<const uint8_t> payload, int64_t rows) const {
  const auto make = [&]() -> absl::StatusOr<AppendPlan> {
    const BlockOptions blocks = this->blocks();
    if (tensor == nullptr) return PlanUnrecorded(options, rows);
    if (encode_blocks_) return PlanRows(options, *tensor, payload, geometry(), blocks);
    return PlanTensor(options, *tensor, payload, {blocks.max_message_bytes, blocks.max_payload_bytes});
  };
  absl::StatusOr<AppendPlan> plan = make();
  if (!plan.ok()) return WithSample(plan.status(), options.sample);
  return plan;
}

absl::StatusOr<std::optional<PlanAppender::Queued>> PlanAppender::Add(absl::StatusOr<AppendPlan> plan, bool may_wait) {
  if (plan.ok()) return Enqueue(*plan, nullptr, may_wait);
  CountRefusal(GetErrorDetail(plan.status()).value_or(ErrorDetail()).reason);
  return plan.status();
}

absl::Status PlanAppender::Append(const AppendOptions& options, const TensorDescription& tensor,
                                  absl::Span<const uint8_t> payload) {
  return Add(Plan(options, &tensor, payload), true).status();
}

absl::Status PlanAppender::AppendUnrecorded(const AppendOptions& options, int64_t rows) {
  return Add(Plan(options, nullptr, {}, rows), true).status();
}

absl::Status PlanAppender::AppendMany(absl::Span<const NewAppend> appends, QueuedAppends& queued, bool may_wait) {
  for (const NewAppend& append : appends) {
    const auto one = Add(Plan(append.options, append.tensor ? &*append.tensor : nullptr, append.payload,
                              TotalRows(append.options.unrecorded)),
                         may_wait);
    if (!one.ok()) return one.status();
    if (!*one) break;
    queued.sequences.push_back((*one)->sequence);
    queued.dropped += (*one)->dropped ? 1 : 0;
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::client
