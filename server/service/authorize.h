// The check that every handler begins with: the token that came with the call, against the rule of the call.
#ifndef SERVER_SERVICE_AUTHORIZE_H_
#define SERVER_SERVICE_AUTHORIZE_H_

#include <grpcpp/server_context.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/security/access_control.h"
#include "server/security/call_rules.h"
#include "server/service/service_context.h"

namespace routing_replay::server {

// Who calls, as of now; asked anew for every message of a stream. Errors as AccessControl::Identify; counted.
absl::StatusOr<Permissions> Identify(ServiceContext& context, const grpc::ServerContextBase& call);
// Who shares what the server has with others: the bearer of a token, however it is sent, or a connection where there
// are none.
std::string OwnerOf(const ServiceContext& context, const grpc::ServerContextBase& call);
// Whether `rpc` is allowed on the run. Errors as Permissions::Check; counted.
absl::Status Allow(ServiceContext& context, const Permissions& permissions, Rpc rpc, absl::string_view run);
// Both.
absl::Status Authorize(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc, absl::string_view run);
// For a call that names no run: one of the scopes, on whatever run.
absl::StatusOr<Permissions> AuthorizeAnywhere(ServiceContext& context, const grpc::ServerContextBase& call, Rpc rpc);

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_AUTHORIZE_H_
