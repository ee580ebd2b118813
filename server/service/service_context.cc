#include "server/service/service_context.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "server/store/sample/row_pieces.h"
#include "server/store/sample/sample_rules.h"

namespace routing_replay::server {
namespace {

absl::Status Counted(ServiceContext& context, absl::Status status) {
  if (!status.ok()) context.metrics.CountAccessRejection(status);
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
  if (!status.ok()) context.metrics.CountAccessRejection(absl::UnauthenticatedError(""));
  return status;
}

// What is stored of compressed bytes may be far more than came.
int64_t PayloadOf(const AppendRequest& request, int64_t max_payload_bytes) {
  const auto bytes = static_cast<int64_t>(request.payload.size());
  const auto* tensor = request.append ? std::get_if<TensorDescription>(&request.append->payload_kind) : nullptr;
  if (tensor == nullptr || tensor->compression == Compression::kNone) return bytes;
  return std::max(bytes, std::min(tensor->raw_size, max_payload_bytes));
}

// As if the sample were new. What a run that is not there would be charged is nothing: the store rejects it.
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

absl::StatusOr<RunQuota::Hold> AdmitAppend(ServiceContext& context, absl::string_view run, const AppendRequest& request,
                                           RunQuota::Hold promised) {
  if (!context.quota.limits_bytes()) return RunQuota::Hold();
  const int64_t cost = CostOf(context, run, request);
  if (cost <= promised.bytes()) return promised;
  auto more = context.quota.Admit(run, cost - promised.bytes());
  if (!more.ok()) return more.status();
  promised.Merge(*std::move(more));
  return promised;
}

}  // namespace routing_replay::server
