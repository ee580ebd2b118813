// Whether those who connect to the server are still let in. Where they are not (no descriptors, a socket's path that is
// gone), nothing else says so: calls of connections that are there go on.
#ifndef SERVER_OPERATIONS_LISTENER_WATCH_H_
#define SERVER_OPERATIONS_LISTENER_WATCH_H_

#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/operations/periodic_thread.h"

namespace routing_replay::server {

// Where a listener of this machine is, found once: names may be unknown for a while, and listeners do not move.
class ListenerAddress {
 public:
  // Of host:port, [v6]:port or unix:PATH. UNKNOWN naming it if its name is not found, as without a descriptor.
  static absl::StatusOr<ListenerAddress> Find(const std::string& address);

  // Connects, sends nothing, and waits for the listener's end of the connection, or any byte: with and without TLS it
  // comes where connections are taken. UNAVAILABLE naming the address if it does not come in time; RESOURCE_EXHAUSTED
  // if this process has no descriptor to ask with.
  absl::Status Ask(std::chrono::milliseconds patience) const;

 private:
  std::string address_;
  sockaddr_storage storage_{};
  socklen_t size_ = 0;
};

class ListenerWatch {
 public:
  struct Options {
    std::vector<std::string> addresses;  // host:port, [v6]:port or unix:PATH.
    std::chrono::milliseconds interval = std::chrono::seconds(2);
    std::chrono::milliseconds patience = std::chrono::seconds(3);
    int looks_until_unready = 2;
    // Many, as a restart costs what is in memory. A look that could not ask every listener, for want of a descriptor or
    // since a name was never found, is not counted.
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
  absl::Status Ask(const std::string& address);

  const Options options_;
  const Told told_;
  std::map<std::string, ListenerAddress> found_;  // Of the thread.
  int failed_looks_ = 0;
  int silent_looks_ = 0;      // In which one did not answer,
  int all_silent_looks_ = 0;  // and in which none did.
  PeriodicThread thread_;
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_LISTENER_WATCH_H_
