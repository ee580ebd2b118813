// The direct path of a server: its listeners, the threads of its connections, and its tickets.
#ifndef SERVER_DIRECT_DIRECT_SERVER_H_
#define SERVER_DIRECT_DIRECT_SERVER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/mutex.h"
#include "server/connections/accept_loop.h"
#include "server/direct/direct_connection.h"
#include "server/direct/direct_loop.h"

namespace routing_replay::server {

class DirectServer {
 public:
  // Of connections of the direct path alone. From any of its threads.
  using Told = std::function<void(ConnectionEvent event)>;

  // Listens there, and on an abstract Unix socket of this machine; sets `context.direct`. Nobody is served before
  // Start. UNAVAILABLE naming the address. `context` must outlive this.
  static absl::StatusOr<std::unique_ptr<DirectServer>> Listen(ServiceContext& context, const DirectListener& listener,
                                                              const ConnectionLimits& limits, Told told);
  ~DirectServer();

  // With the port that was chosen; empty: the Unix socket alone.
  const std::string& address() const { return address_; }
  void Start();
  // Nobody comes any more; calls go on, and end soon where they can.
  void Drain();
  // Ends all calls, those of store workers excepted, which must be finished before.
  void ShutdownAndJoin();

 private:
  class Acceptor;

  DirectServer(ServiceContext& context, const ConnectionLimits& limits, Told told);
  absl::Status Open(const DirectListener& listener);
  absl::Status OpenUnix();
  // On the first loop's thread.
  void TakeIn(int fd, const Peer& peer);

  ServiceContext& context_;
  const Told told_;
  Tickets tickets_;
  Mutex mutex_;
  ConnectionTable table_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<DirectLoop>> loops_;
  size_t next_loop_ = 0;  // Of the first loop's thread.
  std::string address_;
  std::vector<ListeningSocket> sockets_;
  std::vector<int> fds_;  // That listen; those of sockets_ and the Unix socket.
  int unix_fd_ = -1;
  std::atomic<bool> stopped_{false};
};

}  // namespace routing_replay::server

#endif  // SERVER_DIRECT_DIRECT_SERVER_H_
