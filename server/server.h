// The server as an object: main.cc runs one, and tests run it in their own process.
#ifndef SERVER_SERVER_H_
#define SERVER_SERVER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/clock.h"
#include "server/config/config.h"

namespace routing_replay::server {

class Server {
 public:
  // The server listens and serves when Start returns. If Redis cannot be reached, Start waits for it and reports that
  // to `warn`, until `give_up` (called every few seconds) returns true: CANCELLED. UNAVAILABLE if an address cannot be
  // used or the store cannot be opened, INVALID_ARGUMENT for a bad file of the configuration, DATA_LOSS if the store is
  // damaged as a whole, FAILED_PRECONDITION if another process uses the spill directory. `clock` must outlive the
  // server. `warn` gets one line about each later problem, from any thread.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      ServerConfig config, const Clock& clock = Clock::Real(),
      const std::function<void(const std::string&)>& warn = [](const std::string&) {},
      const std::function<bool()>& give_up = [] { return false; });
  virtual ~Server() = default;  // Shuts down without waiting if Shutdown was not called.

  // The address in the endpoint file: ServerConfig::advertise if it is one address, otherwise the first gRPC listener.
  virtual const std::string& advertised() const = 0;
  // Addresses of the HTTP port and of the health port, with the chosen ports; empty: none.
  virtual std::string operations_address() const = 0;
  virtual std::string health_address() const = 0;
  // One line for the log: version, ports, store, budget, and what was found at the start (OpenedStore).
  virtual std::string StartLine() const = 0;
  // Warnings about listeners that everybody may use, one line each.
  virtual const std::vector<std::string>& warnings() const = 0;
  // Reports "not ready" and removes the endpoint file, so that no new clients come. Serves as before.
  virtual void Drain() = 0;
  // Drains if that was not done yet, rejects new work, lets calls in progress end within `patience`, cancels the rest,
  // and stops all threads. Call it at most once.
  virtual void Shutdown(std::chrono::milliseconds patience) = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVER_H_
