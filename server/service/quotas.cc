#include "server/service/quotas.h"

#include <algorithm>
#include <variant>

namespace routing_replay {
namespace {

// What is stored of compressed bytes may be far more than came.
int64_t BytesOf(const AppendRequest& request, int64_t max_payload_bytes) {
  const auto bytes = static_cast<int64_t>(request.payload.size());
  const auto* tensor = request.append ? std::get_if<TensorDescription>(&request.append->payload_kind) : nullptr;
  if (tensor == nullptr || tensor->compression == Compression::kNone) return bytes;
  return std::max(bytes, std::min(tensor->raw_size, max_payload_bytes));
}

}  // namespace

absl::Status AdmitBytes(ServiceContext& context, absl::string_view run, const AppendRequest& request) {
  absl::Status status = context.quota.Admit(run, BytesOf(request, context.config.max_payload_bytes));
  if (!status.ok()) context.metrics.CountQuotaRefusal("run_bytes");
  return status;
}

absl::StatusOr<std::unique_ptr<RunQuota::Stream>> OpenStream(ServiceContext& context, absl::string_view run) {
  auto stream = context.quota.Open(run);
  if (!stream.ok()) context.metrics.CountQuotaRefusal("run_streams");
  return stream;
}

absl::Status OverDeadline(ServiceContext& context) {
  context.metrics.CountQuotaRefusal("max_deadline");
  return absl::DeadlineExceededError("the call took longer than this server allows (max-deadline)");
}

}  // namespace routing_replay
