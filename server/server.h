// The server as an object: main.cc runs one, tests run one in their own process.
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
  // Listens and serves when it returns; waits for a Redis that cannot be reached, and says so to `warn`, until
  // `give_up`, which is asked every few seconds: CANCELLED. INVALID_ARGUMENT for an address that cannot be one,
  // UNAVAILABLE if an address is taken or the store cannot be opened, DATA_LOSS if it is damaged as a whole,
  // FAILED_PRECONDITION if another process has the spill directory. `clock` must outlive the server. `warn` takes one
  // line on what goes wrong later, from any thread.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      ServerConfig config, const Clock& clock = Clock::Real(),
      const std::function<void(const std::string&)>& warn = [](const std::string&) {},
      const std::function<bool()>& give_up = [] { return false; });
  virtual ~Server() = default;  // Shuts down with no patience if Shutdown was not called.

  // Addresses with the ports that were chosen, in the order of config.listen.
  virtual const std::vector<std::string>& addresses() const = 0;
  // What clients are told.
  virtual const std::string& advertised() const = 0;
  // Of the HTTP port and of the health port, with the ports that were chosen; empty: none.
  virtual std::string operations_address() const = 0;
  virtual std::string health_address() const = 0;
  // One line: version, ports, store, budget, and what the store has found.
  virtual std::string StartLine() const = 0;
  // Listeners that are open to everybody, one line each.
  virtual const std::vector<std::string>& warnings() const = 0;
  // Says that it is not ready, and withdraws the endpoint file: nobody new is to come. Serves as before.
  virtual void Drain() = 0;
  // Drains if it does not yet, rejects new work, lets calls in flight end within `patience`, cancels the rest, stops
  // all threads. Once.
  virtual void Shutdown(std::chrono::milliseconds patience) = 0;
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVER_H_
