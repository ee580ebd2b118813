// The health service of gRPC on a port of its own, for probes that can do no TLS and must not depend on the listeners
// of the service: names "live", "ready" and "", which is ready.
#ifndef SERVER_OPERATIONS_HEALTH_PORT_H_
#define SERVER_OPERATIONS_HEALTH_PORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace routing_replay {

class HealthPort {
 public:
  // Live and not ready when it returns. `channelz`: serves channelz, too, which tells about all connections.
  // UNAVAILABLE naming the address if it cannot be had.
  static absl::StatusOr<std::unique_ptr<HealthPort>> Start(const std::string& address, bool channelz);
  virtual ~HealthPort() = default;

  // Those who watch hear of it. Thread-safe.
  virtual void SetReady(bool ready) = 0;
  virtual void SetLive(bool live) = 0;
  // With the port that was chosen.
  virtual const std::string& address() const = 0;
};

}  // namespace routing_replay

#endif  // SERVER_OPERATIONS_HEALTH_PORT_H_
