// absl::Status over gRPC: the code, the message and the ErrorDetail survive the way.
#ifndef PROTO_TRANSPORT_GRPC_STATUS_H_
#define PROTO_TRANSPORT_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace routing_replay {
inline namespace wire {

grpc::Status ToGrpcStatus(const absl::Status& status);
// At a client. A bare CANCELLED is UNAVAILABLE: so a server that ends refuses calls that come at its last moment. (Who
// cancels a call does not look at its end; what our servers cancel says so in its details.)
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_TRANSPORT_GRPC_STATUS_H_
