#include "server/service/welcome.h"

#include <utility>

#include "server/service/authorize.h"

namespace routing_replay::server {

absl::Status Welcome(ServiceContext& context, const grpc::ServerContext& call,
                     std::unique_ptr<ConnectionCalls::Place>& place) {
  if (context.draining) return DrainingError();
  if (const auto permissions = Identify(context, call); !permissions.ok()) return permissions.status();
  auto entered = context.connections.Enter(call.peer());
  if (!entered.ok()) return entered.status();
  place = *std::move(entered);
  return absl::OkStatus();
}

}  // namespace routing_replay::server
