#include "client/channel/channel.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <array>
#include <mutex>

#include "absl/strings/match.h"

namespace routing_replay::client {

namespace {

struct ChannelOption {
  const char* name;
  int value;
};

// Load balancing for ServerTarget::round_robin: spreads calls over the addresses of a DNS name.
constexpr char kPolicyOption[] = "grpc.lb_policy_name";
constexpr char kRoundRobin[] = "round_robin";

// HTTP proxies named in environment variables are ignored unless `use_http_proxy`.
constexpr std::array<ChannelOption, 12> ChannelOptions(bool use_http_proxy) {
  return {{
      {"grpc.enable_http_proxy", use_http_proxy ? 1 : 0},
      // Gives each channel its own connection. Sharing would also let a forked child use its parent's connections, on
      // which it gets no answer.
      {"grpc.use_local_subchannel_pool", 1},
      {"grpc.max_receive_message_length", -1},
      {"grpc.max_send_message_length", -1},
      // Accept no compression, because gRPC decompresses without a size limit.
      {"grpc.compression_enabled_algorithms_bitset", 1},
      // Detects within 40 s a server that died without closing the connection. The server accepts a ping every 10 s.
      {"grpc.keepalive_time_ms", 30'000},
      {"grpc.keepalive_timeout_ms", 10'000},
      {"grpc.http2.max_pings_without_data", 0},
      // Short backoff, so that a restarted server is found quickly.
      {"grpc.initial_reconnect_backoff_ms", 100},
      // gRPC also uses this as the timeout of one connection attempt (up to the SETTINGS frame), for which a busy
      // machine needs time.
      {"grpc.min_reconnect_backoff_ms", 5'000},
      {"grpc.max_reconnect_backoff_ms", 2'000},
      // Resolve often enough to find a server that came back with another address. gRPC resolves a name only after a
      // connection broke.
      {"grpc.dns_min_time_between_resolutions_ms", 1'000},
  }};
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const ChannelKeys& keys) {
  if (!keys.encrypted) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials(
      {.pem_root_certs = keys.root_certificates, .pem_private_key = keys.key, .pem_cert_chain = keys.certificate});
}

google::protobuf::LogHandler* others_handler = nullptr;

// Drops protobuf's log line about text that is not UTF-8, because the call ends with an error that says the same. All
// other lines go to the previous handler, because the host process may use the same libprotobuf.
void HandleProtobufLine(google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
  if (absl::StrContains(message, "invalid UTF-8 data")) return;
  if (others_handler != nullptr) others_handler(level, file, line, message);
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const ServerTarget& target, const ChannelKeys& keys, bool use_http_proxy) {
  static std::once_flag once;
  std::call_once(once, [] { others_handler = google::protobuf::SetLogHandler(HandleProtobufLine); });
  grpc::ChannelArguments arguments;
  for (const ChannelOption& option : ChannelOptions(use_http_proxy)) arguments.SetInt(option.name, option.value);
  if (target.round_robin) arguments.SetString(kPolicyOption, kRoundRobin);
  if (!keys.server_name.empty()) arguments.SetString(kServerNameOption, keys.server_name);
  return grpc::CreateCustomChannel(target.target, CredentialsOf(keys), arguments);
}

}  // namespace routing_replay::client
