#include "routing_replay/client.h"

#include <utility>

#include "client/caller.h"
#include "client/channel/link.h"
#include "client/run.h"
#include "proto/convert/convert.h"

namespace routing_replay {
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

// Whether anything is asked for: joining workers need not repeat what the run has by default.
bool AsksForSomething(const RunSettings& settings) {
  return settings.ttl.count() != 0 || settings.strict || settings.block_rows != 0 || settings.codec ||
         settings.durability;
}

class ClientImpl final : public Client {
 public:
  explicit ClientImpl(std::shared_ptr<const Caller> caller) : caller_(std::move(caller)) {}

  absl::StatusOr<std::shared_ptr<Run>> OpenRun(absl::string_view run, const Geometry& geometry,
                                               const RunSettings& settings) override {
    v1::OpenRunRequest request;
    request.set_run(std::string(run));
    *request.mutable_geometry() = ToProto(geometry);
    if (AsksForSomething(settings)) *request.mutable_options() = ToProto(settings);
    return OpenRunWith(caller_, std::move(request));
  }

  absl::StatusOr<std::shared_ptr<Run>> JoinRun(absl::string_view run) override {
    v1::OpenRunRequest request;
    request.set_run(std::string(run));
    return OpenRunWith(caller_, std::move(request));
  }

  absl::StatusOr<std::vector<RunSummary>> ListRuns() override {
    const auto response = caller_->Call(&Stub::ListRuns, v1::ListRunsRequest());
    if (!response.ok()) return response.status();
    std::vector<RunSummary> runs;
    for (const v1::RunState& state : response->runs()) {
      auto summary = Summary(state);
      if (!summary.ok()) return summary.status();
      runs.push_back(*std::move(summary));
    }
    return runs;
  }

  absl::StatusOr<ServerSummary> GetServerInfo() override {
    const auto info = caller_->Call(&Stub::GetServerInfo, v1::GetServerInfoRequest());
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

 private:
  const std::shared_ptr<const Caller> caller_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  auto link = Link::Open(options.endpoint, options.use_http_proxy, options.call_timeout);
  if (!link.ok()) return link.status();
  return std::make_unique<ClientImpl>(std::make_shared<const Caller>(*std::move(link), options.call_timeout));
}

}  // namespace routing_replay
