#include "client/shard/servers.h"

#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "client/channel/direct_connection.h"
#include "client/channel/link.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {
namespace {

absl::string_view FirstLabel(absl::string_view host) { return host.substr(0, host.find('.')); }

// Returns true if this process runs on `host`, which is the host of a member's endpoint.
bool IsHere(const std::string& host) {
  const char* said = std::getenv(kPlaceVariable);
  if (said != nullptr && said[0] != '\0') return host == said;
  char own[HOST_NAME_MAX + 1] = {};
  gethostname(own, sizeof(own) - 1);
  return IsOfThisMachine(host) || FirstLabel(host) == FirstLabel(own);
}

}  // namespace

bool IsNoRun(const absl::Status& status) {
  return absl::IsNotFound(status) && GetErrorDetail(status).value_or(ErrorDetail()).reason == Reason::kNoRun;
}

absl::StatusOr<ServerSummary> CallServerInfo(const Caller& caller) {
  RR_ASSIGN_OR_RETURN(const auto info, caller.Call(&Caller::Stub::GetServerInfo, v1::GetServerInfoRequest()));
  ServerSummary summary{.version = info.version(),
                        .store = info.store(),
                        .budget_bytes = static_cast<int64_t>(info.budget_bytes()),
                        .stored_bytes = static_cast<int64_t>(info.stored_bytes()),
                        .reserved_bytes = static_cast<int64_t>(info.reserved_bytes()),
                        .samples = static_cast<int64_t>(info.samples()),
                        .runs = static_cast<int64_t>(info.runs()),
                        .uptime = std::chrono::milliseconds(info.uptime_ms()),
                        .draining = info.draining(),
                        .spill_budget_bytes = static_cast<int64_t>(info.spill_budget_bytes()),
                        .spilled_bytes = static_cast<int64_t>(info.spilled_bytes())};
  for (const auto& [name, value] : info.counters()) {
    summary.counters.emplace_back(name, static_cast<int64_t>(value));
  }
  std::sort(summary.counters.begin(), summary.counters.end());
  return summary;
}

absl::StatusOr<std::shared_ptr<const Servers>> Servers::Connect(const ClientOptions& options) {
  std::shared_ptr<Servers> servers(new Servers);
  std::vector<std::string> endpoints = {options.endpoint};
  if (ShardMembers::IsShardEndpoint(options.endpoint)) {
    RR_ASSIGN_OR_RETURN(auto members, ShardMembers::Parse(options.endpoint));
    endpoints = members.endpoints();
    for (size_t place = 0; place < members.size(); ++place) {
      if (std::string tag = members.TagOf(place); !tag.empty()) servers->tags_.push_back(std::move(tag));
    }
    std::vector<std::string> here;
    std::copy_if(servers->tags_.begin(), servers->tags_.end(), std::back_inserter(here),
                 [](const std::string& tag) { return IsHere(tag.substr(0, tag.size() - 1)); });
    if (here.size() == 1) servers->tag_here_ = here.front();
    servers->members_ = std::move(members);
  }
  for (const std::string& endpoint : endpoints) {
    RR_ASSIGN_OR_RETURN(auto link, Link::Open(endpoint, options.security, options.call_timeout));
    servers->callers_.push_back(std::make_unique<const Caller>(std::move(link), options.call_timeout,
                                                               /*is_one_of_several=*/servers->members_.has_value()));
  }
  return servers;
}

absl::StatusOr<std::shared_ptr<const Servers>> Servers::All(std::shared_ptr<const Servers> given,
                                                            ClientOptions options) {
  if (given->members_) return given;
  v1::GetServerInfoRequest request;
  request.set_without_store(true);
  RR_ASSIGN_OR_RETURN(const auto info, given->at(0).Call(&Caller::Stub::GetServerInfo, request));
  if (!ShardMembers::IsShardEndpoint(info.endpoint())) return given;
  options.endpoint = info.endpoint();
  return Connect(options);
}

int64_t Servers::HandleOf(absl::string_view sample) const {
  return members_ ? members_->HandleOf(sample) : SampleHandle(sample);
}

absl::StatusOr<std::pair<size_t, int64_t>> Servers::FindHandle(int64_t handle) const {
  if (!members_) return std::pair(size_t{0}, handle);
  RR_ASSIGN_OR_RETURN(const auto place, members_->PlaceOfHandle(handle));
  return std::pair(place, BareHandle(handle));
}

absl::Status Servers::CheckFork(absl::string_view fork, absl::string_view parent) const {
  if (!members_ || parent.empty()) return absl::OkStatus();
  return WithSample(members_->CheckFork(fork, parent), fork);
}

absl::Status Servers::Named(size_t place, const absl::Status& status) const {
  if (!members_ || status.ok()) return status;
  const std::string message = absl::StrCat("server ", members_->endpoints()[place], ": ", status.message());
  const auto detail = GetErrorDetail(status);
  return detail ? MakeError(status.code(), message, *detail) : absl::Status(status.code(), message);
}

absl::Status Servers::Judge(const std::vector<absl::Status>& ends, Needed needed) const {
  bool any_good = false;
  std::optional<size_t> rejected, away, without;  // The first server that rejected the call, is away, or lacks the run.
  for (size_t i = 0; i < ends.size(); ++i) {
    any_good = any_good || ends[i].ok();
    if (ends[i].ok()) continue;
    std::optional<size_t>& first = IsNoRun(ends[i]) ? without : IsUnreachable(ends[i]) ? away : rejected;
    if (!first) first = i;
  }
  if (rejected) return Named(*rejected, ends[*rejected]);
  if (away && (!any_good || needed != Needed::kThoseThatAnswer)) return Named(*away, ends[*away]);
  if (!any_good) return Named(*without, ends[*without]);
  if (!without || needed != Needed::kAll) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kDataLoss,
      absl::StrCat("server ", members_->endpoints()[*without], ": the run is gone there, although it exists on ",
                   "other servers of the list; its samples there are lost. Open the run with its geometry, which ",
                   "makes it there again, and restore the missing samples from a checkpoint"),
      {.reason = Reason::kNoRun});
}

}  // namespace routing_replay::client
