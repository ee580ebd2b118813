#include "server/service/authorize.h"

#include <grpc/grpc_security_constants.h>

namespace routing_replay::server {
namespace {

absl::Status Counted(ServiceContext& context, absl::Status status) {
  if (!status.ok()) context.metrics.CountAccessRefusal(status);
  return status;
}

absl::string_view Property(const grpc::AuthContext& connection, const char* name) {
  const std::vector<grpc::string_ref> values = connection.FindPropertyValues(name);
  return values.empty() ? absl::string_view() : absl::string_view(values[0].data(), values[0].size());
}

// The certificate belongs to the connection, so that what is kept there is right for it. A Unix socket has none.
absl::Status CheckConnection(ServiceContext& context, const grpc::ServerContextBase& call) {
  if (context.client_certificates == nullptr) return absl::OkStatus();
  const auto connection = call.auth_context();
  const absl::string_view certificate = Property(*connection, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (certificate.empty()) return absl::OkStatus();
  absl::Status status =
      context.client_certificates->Check(certificate, Property(*connection, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME));
  if (!status.ok()) context.metrics.CountAccessRefusal(absl::UnauthenticatedError(""));
  return status;
}

}  // namespace

absl::StatusOr<Permissions> Identify(ServiceContext& context, const grpc::ServerContextBase& call) {
  if (absl::Status status = CheckConnection(context, call); !status.ok()) return status;
  auto permissions = context.access.Identify(AuthorizationOf(call));
  if (!permissions.ok()) return Counted(context, permissions.status());
  return permissions;
}

std::string OwnerOf(const ServiceContext& context, const grpc::ServerContextBase& call) {
  const absl::string_view token = context.config.token_file.empty() ? "" : TokenOf(AuthorizationOf(call));
  return token.empty() ? call.peer() : std::string(token);
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
  absl::Status allowed = Counted(context, permissions->CheckAnywhere(RuleOf(rpc).any_of));
  if (!allowed.ok()) return allowed;
  return permissions;
}

}  // namespace routing_replay::server
