#include "client/shard/servers.h"

#include "absl/strings/str_cat.h"
#include "client/channel/link.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {

bool IsNoRun(const absl::Status& status) {
  return absl::IsNotFound(status) && GetErrorDetail(status).value_or(ErrorDetail()).reason == Reason::kNoRun;
}

absl::StatusOr<std::shared_ptr<const Servers>> Servers::Connect(const ClientOptions& options) {
  std::shared_ptr<Servers> servers(new Servers);
  std::vector<std::string> endpoints = {options.endpoint};
  if (ShardMembers::IsShardEndpoint(options.endpoint)) {
    RR_ASSIGN_OR_RETURN(auto members, ShardMembers::Parse(options.endpoint));
    endpoints = members.endpoints();
    servers->members_ = std::move(members);
  }
  for (const std::string& endpoint : endpoints) {
    RR_ASSIGN_OR_RETURN(auto link,
                        Link::Open(endpoint, options.use_http_proxy, options.security, options.call_timeout));
    servers->callers_.push_back(std::make_unique<const Caller>(std::move(link), options.call_timeout,
                                                               /*is_one_of_several=*/servers->members_.has_value()));
  }
  return servers;
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
  std::optional<size_t> rejected, away, without;  // The first place of each kind.
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
