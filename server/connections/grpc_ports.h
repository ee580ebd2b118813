// Builds the gRPC servers of this process, and runs the one for health checks.
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

// Returns a builder for a gRPC server that rejects compressed messages. `health`: adds the health service. Thread-safe.
std::unique_ptr<grpc::ServerBuilder> NewServerBuilder(bool health);

// Limits for every connection of the server: a handshake must end within 20 s, and a peer that is silent for 60 s must
// answer a ping within 20 s. Each limit is shortened to `patience` if that is less, but not below 1 s. Clients may ping
// every 10 s.
void SetPeerLimits(std::chrono::milliseconds patience, grpc::ServerBuilder& builder);

// gRPC's health service on a port of its own, for probes that cannot use TLS and must not depend on the service's
// listeners. A probe asks for "live", "ready" or "", which means ready.
class HealthPort {
 public:
  // `address` is host:port or [v6]:port; port 0 means any free one. `patience` as for SetPeerLimits. When it returns,
  // the port reports "live" but not "ready". UNAVAILABLE naming the address if it is in use.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(
      const std::string& address, std::chrono::milliseconds patience = std::chrono::minutes(2));
  ~HealthPort();

  // Sets whether the port reports "ready", and tells open Watch calls. Thread-safe.
  void SetReady(bool ready);
  // The address, with the port that was chosen.
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
