#include "server/operations/peer_limits.h"

#include <algorithm>

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHandshake(20'000), kKeepalive(60'000), kKeepaliveAnswer(20'000), kShortest(1000);
// Clients keep idle connections alive every 30 s; gRPC's default floor of 5 minutes would cut them off.
constexpr int kPingFloorMs = 10'000;

}  // namespace

void SetPeerLimits(milliseconds patience, grpc::ServerBuilder& builder) {
  const auto at_most = [&](milliseconds time) {
    return static_cast<int>(std::clamp(patience, kShortest, time).count());
  };
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, at_most(kHandshake));
  // A peer that stops in the middle of a frame does not answer pings.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, at_most(kKeepalive));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, at_most(kKeepaliveAnswer));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingFloorMs);
}

}  // namespace routing_replay::server
