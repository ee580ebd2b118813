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
#include "proto/wire/tls/tls_context.h"
#include "server/connections/accept_loop.h"
#include "server/direct/direct_connection.h"
#include "server/direct/direct_loop.h"
#include "server/security/served_tls.h"

namespace routing_replay::server {

class DirectServer {
 public:
  // Of connections of the direct path alone. From any of its threads.
  using Told = std::function<void(ConnectionEvent event)>;

  // Listens there with `tls`; where that is null, without TLS and on an abstract Unix socket of this machine as well.
  // Sets `context.direct`. Nobody is served before Start. UNAVAILABLE naming the address, or the settings of TLS.
  // `context` and `tls` must outlive this.
  static absl::StatusOr<std::unique_ptr<DirectServer>> Listen(ServiceContext& context, const DirectListener& listener,
                                                              const ServedTls* tls, const ConnectionLimits& limits,
                                                              Told told);
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

  DirectServer(ServiceContext& context, const ServedTls* tls, const ConnectionLimits& limits, Told told);
  absl::Status Open(const DirectListener& listener);
  absl::Status OpenUnix();
  // Follows the files of TLS, as far as they can be used.
  absl::Status FollowTls();
  // On the first loop's thread.
  void TakeIn(int fd, const Peer& peer);

  ServiceContext& context_;
  const ServedTls* const tls_;
  const Told told_;
  Tickets tickets_;
  Mutex mutex_;
  ConnectionTable table_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<DirectLoop>> loops_;
  // Of the first loop's thread:
  size_t next_loop_ = 0;
  std::shared_ptr<const TlsTexts> tls_texts_;  // That were looked at last.
  TlsContext tls_context_;                     // Null: without TLS.

  std::string address_;
  std::vector<ListeningSocket> sockets_;
  std::vector<int> fds_;  // That listen; those of sockets_ and the Unix socket.
  int unix_fd_ = -1;
  std::atomic<bool> stopped_{false};
};

}  // namespace routing_replay::server

#endif  // SERVER_DIRECT_DIRECT_SERVER_H_
