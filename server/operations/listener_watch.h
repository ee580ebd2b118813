// Whether those who connect to the server are still let in. gRPC gives up a listener for good where it has run out of
// file descriptors once, and nothing else says so: calls of connections that are there go on.
#ifndef SERVER_OPERATIONS_LISTENER_WATCH_H_
#define SERVER_OPERATIONS_LISTENER_WATCH_H_

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/operations/periodic_thread.h"

namespace routing_replay {

// Connects to a listener of this machine, sends nothing, and waits for its end of the connection, or any byte: with and
// without TLS it comes where connections are taken. UNAVAILABLE naming the address if it does not come in time;
// RESOURCE_EXHAUSTED if this process has no descriptor to ask with.
absl::Status AskListener(const std::string& address, std::chrono::milliseconds patience);

class ListenerWatch {
 public:
  struct Options {
    std::vector<std::string> addresses;  // host:port, [v6]:port or unix:PATH.
    std::chrono::milliseconds interval = std::chrono::seconds(2);
    std::chrono::milliseconds patience = std::chrono::seconds(3);
    int looks_until_unready = 2;
    // Many, as a restart costs what is in memory; without a descriptor to ask with, none is counted.
    int looks_until_dead = 10;
  };
  struct Found {
    absl::Status answering;  // OK, or why one of the listeners does not answer.
    bool alive = true;       // Ends where that has been so for long.
    bool reachable = true;   // Ends where for so long none of them has answered.
  };
  // Called after each look, by one thread.
  using Told = std::function<void(const Found&)>;

  ListenerWatch(Options options, Told told);

 private:
  std::chrono::milliseconds Look();

  const Options options_;
  const Told told_;
  int failed_looks_ = 0;
  int silent_looks_ = 0;      // In which one did not answer,
  int all_silent_looks_ = 0;  // and in which none did.
  PeriodicThread thread_;
};

}  // namespace routing_replay

#endif  // SERVER_OPERATIONS_LISTENER_WATCH_H_
