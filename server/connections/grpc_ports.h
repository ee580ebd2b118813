// How the servers of gRPC in this process are built, and the one that serves health alone.
#ifndef SERVER_CONNECTIONS_GRPC_PORTS_H_
#define SERVER_CONNECTIONS_GRPC_PORTS_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/connections/accept_loop.h"

namespace routing_replay::server {

// Every server of the process is built by one of these: none takes messages that gRPC compressed. Thread-safe.
std::unique_ptr<grpc::ServerBuilder> NewServerBuilder(bool health);

// Of every connection of the server that is built: a handshake ends within 20 s, and a peer that is silent for 60 s
// answers a ping within 20 s; each sooner where `patience` is less, but not below 1 s. Clients may ping every 10 s.
void SetPeerLimits(std::chrono::milliseconds patience, grpc::ServerBuilder& builder);

// The health service of gRPC on a port of its own, for probes that can do no TLS and must not depend on the listeners
// of the service: names "live", "ready" and "", which is ready.
class HealthPort {
 public:
  // host:port or [v6]:port; port 0: any free one. `patience` as of SetPeerLimits. Live and not ready when it returns.
  // UNAVAILABLE naming the address if it is taken.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(
      const std::string& address, std::chrono::milliseconds patience = std::chrono::minutes(2));
  ~HealthPort();

  // Those who watch hear of it. Thread-safe.
  void SetReady(bool ready);
  // With the port that was chosen.
  const std::string& address() const { return address_; }

 private:
  HealthPort();

  AcceptLoop accept_loop_;
  grpc::CallbackGenericService nothing_else_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace routing_replay::server

#endif  // SERVER_CONNECTIONS_GRPC_PORTS_H_
