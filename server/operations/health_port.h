// The health service of gRPC on a port of its own, for probes that can do no TLS and must not depend on the listeners
// of the service: names "live", "ready" and "", which is ready.
#ifndef SERVER_OPERATIONS_HEALTH_PORT_H_
#define SERVER_OPERATIONS_HEALTH_PORT_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace routing_replay::server {

struct HealthPortOptions {
  std::string address;    // host:port or [v6]:port; port 0: any free one.
  bool channelz = false;  // Serves channelz, too, which tells about all connections.
  std::chrono::milliseconds patience = std::chrono::minutes(2);  // As of SetPeerLimits.
};

class HealthPort {
 public:
  // Live and not ready when it returns. UNAVAILABLE naming the address if it cannot be had.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(const HealthPortOptions& options);
  virtual ~HealthPort() = default;

  // Those who watch hear of it. Thread-safe.
  virtual void SetReady(bool ready) = 0;
  virtual void SetLive(bool live) = 0;
  // With the port that was chosen.
  virtual const std::string& address() const = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_HEALTH_PORT_H_
