// The direct path of a server (Append and Read without gRPC): its listeners, its threads (loops) and its tickets.
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
#include "server/direct/direct_loop.h"
#include "server/security/served_tls.h"

namespace routing_replay::server {

class DirectServer {
 public:
  // Called for events of the direct path's connections, from any of its threads.
  using Told = std::function<void(ConnectionEvent event)>;

  // Listens on `listener`, with TLS if `tls` is not null. Without TLS it also listens on an abstract Unix socket of
  // this machine. Sets `context.direct`. Connections are served only after Start. UNAVAILABLE naming the address or the
  // TLS settings that cannot be used. `context` and `tls` must outlive this.
  static absl::StatusOr<std::unique_ptr<DirectServer>> Listen(ServiceContext& context, const DirectListener& listener,
                                                              const ServedTls* tls, const ConnectionLimits& limits,
                                                              Told told);
  ~DirectServer();

  // The TCP address on which it listens, with the port that was chosen. Empty if there is only the Unix socket.
  const std::string& address() const { return address_; }
  void Start();
  // Accepts no more connections. Open calls are asked to end soon.
  void Drain();
  // Ends all calls. Call it after WorkerPool::Finish of all pools.
  void ShutdownAndJoin();

 private:
  class Acceptor;

  DirectServer(ServiceContext& context, const ServedTls* tls, const ConnectionLimits& limits, Told told);
  absl::Status Open(const DirectListener& listener);
  absl::Status OpenUnix();
  // New connections then use the certificates that `tls_` has now. After an error the previous ones stay in use.
  absl::Status FollowTls();
  // Serves a new connection, if the limits allow it. Called on the first loop's thread.
  void TakeIn(int fd, const Peer& peer);

  ServiceContext& context_;
  const ServedTls* const tls_;
  const Told told_;
  Tickets tickets_;
  Mutex mutex_;
  ConnectionTable table_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<DirectLoop>> loops_;
  // Used by the first loop's thread only:
  size_t next_loop_ = 0;
  std::shared_ptr<const TlsTexts> tls_texts_;  // The contents that FollowTls saw last.
  TlsContext tls_context_;                     // Null without TLS.

  std::string address_;
  std::vector<ListeningSocket> sockets_;
  std::vector<int> fds_;  // All listening descriptors: those of sockets_ and the Unix socket.
  int unix_fd_ = -1;
  std::atomic<bool> stopped_{false};
};

}  // namespace routing_replay::server

#endif  // SERVER_DIRECT_DIRECT_SERVER_H_
