// Makes channels to a server with the settings that all channels of the client share.
#ifndef CLIENT_CHANNEL_CHANNEL_H_
#define CLIENT_CHANNEL_CHANNEL_H_

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>

#include "client/channel/client_security.h"
#include "client/channel/endpoint.h"
#include "proto/wire/clock.h"

namespace routing_replay::client {

// A channel to `target` (from ServerTargets) over a connection of its own. Does not wait for the server. HTTP proxies
// of the environment are ignored unless `use_http_proxy`.
std::shared_ptr<grpc::Channel> MakeChannel(const ServerTarget& target, const ChannelKeys& keys, bool use_http_proxy);

// Converts a deadline to gRPC's clock.
inline std::chrono::system_clock::time_point GrpcDeadline(Clock::Time deadline) {
  const Clock::Duration left = deadline - Clock::Real().Now();
  return std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
}

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_CHANNEL_H_
