#include "server/service/authorize.h"

namespace routing_replay {
namespace {

absl::Status Counted(ServiceContext& context, absl::Status status) {
  if (!status.ok()) context.metrics.CountAccessRefusal(status);
  return status;
}

// Two headers of the name are none: nobody is to choose which one is looked at.
absl::string_view Authorization(const grpc::ServerContextBase& call) {
  const auto [begin, end] = call.client_metadata().equal_range("authorization");
  if (begin == end || std::next(begin) != end) return "";
  return {begin->second.data(), begin->second.size()};
}

}  // namespace

absl::StatusOr<Permissions> Identify(ServiceContext& context, const grpc::ServerContextBase& call) {
  auto permissions = context.access.Identify(Authorization(call));
  if (!permissions.ok()) return Counted(context, permissions.status());
  return permissions;
}

absl::Status Allow(ServiceContext& context, const Permissions& permissions, Rpc rpc, absl::string_view run) {
  return Counted(context, permissions.Check(RuleOf(rpc).any_of, run));
}

absl::Status Authorize(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc, absl::string_view run) {
  const auto permissions = Identify(context, call);
  return permissions.ok() ? Allow(context, *permissions, rpc, run) : permissions.status();
}

absl::StatusOr<Permissions> AuthorizeAnywhere(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc) {
  auto permissions = Identify(context, call);
  if (!permissions.ok()) return permissions;
  const absl::Status allowed = Counted(context, permissions->CheckAnywhere(RuleOf(rpc).any_of));
  if (!allowed.ok()) return allowed;
  return permissions;
}

}  // namespace routing_replay
