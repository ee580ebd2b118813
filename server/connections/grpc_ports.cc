#include "server/connections/grpc_ports.h"

#include <grpcpp/ext/health_check_service_server_builder_option.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHandshake(20'000), kKeepalive(60'000), kKeepaliveAnswer(20'000), kShortest(1000);
// Clients ping idle connections every 30 s. By default gRPC allows one ping in 5 minutes and would cut such
// connections.
constexpr int kPingFloorMs = 10'000;

// Limits of the health port. Probes make one call at a time.
constexpr int kMaxStreams = 100;
constexpr int kMaxConnections = 1000;

}  // namespace

std::unique_ptr<grpc::ServerBuilder> NewServerBuilder(bool health) {
  // This setting of gRPC is not thread-safe, so it is made once, before the first builder.
  static std::once_flag once;
  std::call_once(once, [] { grpc::EnableDefaultHealthCheckService(true); });
  auto builder = std::make_unique<grpc::ServerBuilder>();
  // No compression: gRPC would decompress a message before its length and its caller are checked.
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
  if (!health) builder->SetOption(std::make_unique<grpc::HealthCheckServiceServerBuilderOption>(nullptr));
  return builder;
}

void SetPeerLimits(milliseconds patience, grpc::ServerBuilder& builder) {
  const auto at_most = [&](milliseconds time) {
    return static_cast<int>(std::clamp(patience, kShortest, time).count());
  };
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, at_most(kHandshake));
  // gRPC pings each connection and closes it if the answer does not come. This also ends a connection whose peer
  // stopped in the middle of a frame: it cannot answer a ping.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, at_most(kKeepalive));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, at_most(kKeepaliveAnswer));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingFloorMs);
}

HealthPort::HealthPort()
    : accept_loop_(WithinDescriptors({.connections = kMaxConnections, .calls_at_a_time = kMaxStreams}),
                   [](ConnectionEvent) {}) {}

HealthPort::~HealthPort() {
  // Shuts down at once: open Watch calls would keep the server alive.
  if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
}

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Start(const std::string& address, milliseconds patience) {
  std::unique_ptr<HealthPort> port(new HealthPort);
  const auto builder = NewServerBuilder(/*health=*/true);
  SetPeerLimits(patience, *builder);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  auto listening = port->accept_loop_.Listen(*builder, address, grpc::InsecureServerCredentials());
  if (!listening.ok()) {
    return absl::UnavailableError(absl::StrCat(listening.status().message(), " (--health-listen)"));
  }
  port->address_ = *std::move(listening);
  // gRPC cannot build a server with the health service alone. This service answers UNIMPLEMENTED to all other calls.
  builder->RegisterCallbackGenericService(&port->nothing_else_);
  port->server_ = builder->BuildAndStart();
  if (port->server_ == nullptr) return absl::UnavailableError("gRPC cannot start the server for --health-listen");
  port->accept_loop_.Start();
  port->server_->GetHealthCheckService()->SetServingStatus("live", true);
  port->SetReady(false);
  return port;
}

void HealthPort::SetReady(bool ready) {
  for (const char* name : {"", "ready"}) server_->GetHealthCheckService()->SetServingStatus(name, ready);
}

}  // namespace routing_replay::server
