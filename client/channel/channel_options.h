// The settings of every channel of ours, C++ and Python. Knows no gRPC.
#ifndef CLIENT_CHANNEL_CHANNEL_OPTIONS_H_
#define CLIENT_CHANNEL_CHANNEL_OPTIONS_H_

#include <array>

namespace routing_replay::client {

struct ChannelOption {
  const char* name;
  int value;
};

// Of a channel with ServerTarget::round_robin: how calls are spread over the addresses of a name.
inline constexpr char kPolicyOption[] = "grpc.lb_policy_name";
inline constexpr char kRoundRobin[] = "round_robin";

// HTTP proxies of the environment are ignored unless `use_http_proxy`.
constexpr std::array<ChannelOption, 12> ChannelOptions(bool use_http_proxy) {
  return {{
      {"grpc.enable_http_proxy", use_http_proxy ? 1 : 0},
      // Channels of one process to one server do not share a connection: also, a forked child must not find those of
      // its parent, which never answer.
      {"grpc.use_local_subchannel_pool", 1},
      {"grpc.max_receive_message_length", -1},
      {"grpc.max_send_message_length", -1},
      // Identity alone: gRPC inflates what comes without a limit.
      {"grpc.compression_enabled_algorithms_bitset", 1},
      // A server that is gone without a word is noticed within 40 s. The server's floor for pings is 10 s.
      {"grpc.keepalive_time_ms", 30'000},
      {"grpc.keepalive_timeout_ms", 10'000},
      {"grpc.http2.max_pings_without_data", 0},
      // A server that restarts is found again quickly.
      {"grpc.initial_reconnect_backoff_ms", 100},
      // gRPC bounds an attempt to connect by it, handshake and first answer included: a busy machine takes its time.
      {"grpc.min_reconnect_backoff_ms", 5'000},
      {"grpc.max_reconnect_backoff_ms", 2'000},
      // And one that came back with another address; a name is asked for only after a connection broke.
      {"grpc.dns_min_time_between_resolutions_ms", 1'000},
  }};
}

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_CHANNEL_OPTIONS_H_
