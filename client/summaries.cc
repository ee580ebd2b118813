#include "client/summaries.h"

#include <algorithm>
#include <utility>

#include "client/run.h"
#include "proto/convert/convert.h"

namespace routing_replay::client {

using routing_replay::FromProto;  // run.h has more of them.

namespace {

using Stub = v1::RoutingReplay::Stub;

absl::StatusOr<RunSummary> Summary(const v1::RunState& state) {
  auto geometry = FromProto(state.geometry());
  if (!geometry.ok()) return geometry.status();
  auto settings = FromProto(state.options());
  if (!settings.ok()) return settings.status();
  return RunSummary{.run = state.run(),
                    .geometry = *std::move(geometry),
                    .settings = *settings,
                    .samples = static_cast<int64_t>(state.samples()),
                    .sealed_samples = static_cast<int64_t>(state.sealed_samples()),
                    .committed_rows = static_cast<int64_t>(state.committed_rows()),
                    .stored_bytes = static_cast<int64_t>(state.stored_bytes())};
}

}  // namespace

absl::StatusOr<std::vector<RunSummary>> CallListRuns(const Caller& caller) {
  std::vector<RunSummary> runs;
  v1::ListRunsRequest request;
  do {
    const auto page = caller.Call(&Stub::ListRuns, request);
    if (!page.ok()) return page.status();
    for (const v1::RunState& state : page->runs()) {
      auto summary = Summary(state);
      if (!summary.ok()) return summary.status();
      runs.push_back(*std::move(summary));
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return runs;
}

absl::StatusOr<ServerSummary> CallServerInfo(const Caller& caller) {
  const auto info = caller.Call(&Stub::GetServerInfo, v1::GetServerInfoRequest());
  if (!info.ok()) return info.status();
  ServerSummary summary{.version = info->version(),
                        .store = info->store(),
                        .budget_bytes = static_cast<int64_t>(info->budget_bytes()),
                        .stored_bytes = static_cast<int64_t>(info->stored_bytes()),
                        .reserved_bytes = static_cast<int64_t>(info->reserved_bytes()),
                        .samples = static_cast<int64_t>(info->samples()),
                        .runs = static_cast<int64_t>(info->runs()),
                        .uptime = std::chrono::milliseconds(info->uptime_ms()),
                        .draining = info->draining(),
                        .spill_budget_bytes = static_cast<int64_t>(info->spill_budget_bytes()),
                        .spilled_bytes = static_cast<int64_t>(info->spilled_bytes())};
  for (const auto& [name, value] : info->counters()) {
    summary.counters.emplace_back(name, static_cast<int64_t>(value));
  }
  std::sort(summary.counters.begin(), summary.counters.end());
  return summary;
}

}  // namespace routing_replay::client
