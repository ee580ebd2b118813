#include "server/operations/health_port.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/health_check_service_interface.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/connections/accept_loop.h"
#include "server/operations/peer_limits.h"
#include "server/operations/server_plugins.h"

namespace routing_replay::server {
namespace {

// Probes make one call at a time.
constexpr int kMaxStreams = 100;
constexpr int kMaxConnections = 1000;

class GrpcHealthPort final : public HealthPort {
 public:
  ~GrpcHealthPort() override {
    // At once: those who watch would keep it open.
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  absl::Status Listen(const HealthPortOptions& options) {
    const std::string& address = options.address;
    const auto builder = NewServerBuilder({.health = true, .channelz = options.channelz});
    SetPeerLimits(options.patience, *builder);
    builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
    auto listening = accept_loop_.Listen(*builder, address, grpc::InsecureServerCredentials());
    if (!listening.ok()) {
      return absl::UnavailableError(absl::StrCat(listening.status().message(), " (--health-listen)"));
    }
    address_ = *std::move(listening);
    // gRPC builds no server that has the health service alone. This one answers UNIMPLEMENTED to everything else.
    builder->RegisterCallbackGenericService(&nothing_else_);
    server_ = builder->BuildAndStart();
    if (server_ == nullptr) return absl::UnavailableError("gRPC cannot start its server (--health-listen)");
    accept_loop_.Start();
    SetLive(true);
    SetReady(false);
    return absl::OkStatus();
  }

  void SetReady(bool ready) override {
    for (const char* name : {"", "ready"}) server_->GetHealthCheckService()->SetServingStatus(name, ready);
  }
  void SetLive(bool live) override { server_->GetHealthCheckService()->SetServingStatus("live", live); }
  const std::string& address() const override { return address_; }

 private:
  server::AcceptLoop accept_loop_{
      server::WithinDescriptors({.connections = kMaxConnections, .calls_at_a_time = kMaxStreams}),
      [](server::ConnectionEvent) {}};
  grpc::CallbackGenericService nothing_else_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Start(const HealthPortOptions& options) {
  auto port = std::make_unique<GrpcHealthPort>();
  if (absl::Status status = port->Listen(options); !status.ok()) return status;
  return port;
}

}  // namespace routing_replay::server
