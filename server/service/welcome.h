// Whether a call goes on whose headers have come: before anything else of it is received.
#ifndef SERVER_SERVICE_WELCOME_H_
#define SERVER_SERVICE_WELCOME_H_

#include <grpcpp/server_context.h>

#include <memory>

#include "absl/status/status.h"
#include "server/service/service_context.h"

namespace routing_replay::server {

// OK if it is known who calls, and the connection has not too many calls; `place` is then that of the call, to be given
// up with its end: before it is told, but for an answer that is held until the peer takes it. Errors as Identify and
// ConnectionCalls::Enter, and DrainingError.
absl::Status Welcome(ServiceContext& context, const grpc::ServerContext& call,
                     std::unique_ptr<ConnectionCalls::Place>& place);

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_WELCOME_H_
