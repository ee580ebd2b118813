#include "server/service/quotas.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "server/store/sample/sample_content.h"
#include "server/store/sample/stored_block.h"

namespace routing_replay::server {
namespace {

// What is stored of compressed bytes may be far more than came.
int64_t PayloadOf(const AppendRequest& request, int64_t max_payload_bytes) {
  const auto bytes = static_cast<int64_t>(request.payload.size());
  const auto* tensor = request.append ? std::get_if<TensorDescription>(&request.append->payload_kind) : nullptr;
  if (tensor == nullptr || tensor->compression == Compression::kNone) return bytes;
  return std::max(bytes, std::min(tensor->raw_size, max_payload_bytes));
}

// As if the sample were new. What a run that is not there would be charged is nothing: the store refuses it.
int64_t CostOf(ServiceContext& context, absl::string_view run, const AppendRequest& request) {
  const auto info = context.store.KnownRun(run);
  if (!info.ok() || !request.append) return 0;
  const AppendHeader& header = *request.append;
  const int64_t windows = header.rows.size() / info->options.block_rows + 1;
  int64_t cost = SampleContent::AppendBytes(windows, header.unrecorded.size());
  if (request.payload.size() > 0) {
    cost += PayloadOf(request, context.config.max_payload_bytes) +
            windows * MemoryHome::CostOf(*info->geometry, /*rows=*/0, Codec::kRaw);
  }
  return cost;
}

template <typename T>
absl::StatusOr<T> Counted(ServiceContext& context, const char* quota, absl::StatusOr<T> result) {
  if (!result.ok()) context.metrics.CountQuotaRefusal(quota);
  return result;
}

}  // namespace

absl::StatusOr<RunQuota::Hold> AdmitAppend(ServiceContext& context, absl::string_view run, const AppendRequest& request,
                                           RunQuota::Hold promised) {
  if (!context.quota.limits_bytes()) return RunQuota::Hold();
  const int64_t cost = CostOf(context, run, request);
  if (cost <= promised.bytes()) return promised;
  auto more = Counted(context, "run_bytes", context.quota.Admit(run, cost - promised.bytes()));
  if (!more.ok()) return more.status();
  promised.Merge(*std::move(more));
  return promised;
}

absl::StatusOr<PromisedCredit> AdmitCredit(ServiceContext& context, absl::string_view run, int64_t wanted) {
  if (!context.quota.limits_bytes()) return PromisedCredit{.bytes = wanted, .hold = {}};
  auto hold = Counted(context, "run_bytes", context.quota.AdmitUpTo(run, wanted));
  if (!hold.ok()) return hold.status();
  const int64_t bytes = hold->bytes();
  return PromisedCredit{.bytes = bytes, .hold = *std::move(hold)};
}

absl::StatusOr<std::unique_ptr<RunQuota::Stream>> OpenStream(ServiceContext& context, absl::string_view run,
                                                             RunQuota::StreamKind kind) {
  return Counted(context, "run_streams", context.quota.Open(run, kind));
}

absl::Status OverDeadline(ServiceContext& context) {
  context.metrics.CountQuotaRefusal("max_deadline");
  return absl::DeadlineExceededError("the call took longer than this server allows (max-deadline)");
}

}  // namespace routing_replay::server
