#include "proto/transport/grpc_status.h"

#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      EncodeRpcStatus(status));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return DecodeRpcStatus(static_cast<absl::StatusCode>(status.error_code()), status.error_message(),
                         status.error_details());
}

}  // namespace wire
}  // namespace routing_replay
