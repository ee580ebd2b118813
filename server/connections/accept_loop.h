// Takes the connections of a gRPC server, in gRPC's place: gRPC's own listener ends for good where no descriptor is to
// be had, takes as many connections as come, and lets each begin and take back as many calls as it likes.
//
//   AcceptLoop loop(limits, told);
//   auto address = loop.Listen(builder, "[::]:7400", credentials);   // The port is taken; connections wait.
//   server = builder.BuildAndStart();
//   loop.Start();
//   …
//   loop.StopListening();
//   server->Shutdown(…);
#ifndef SERVER_CONNECTIONS_ACCEPT_LOOP_H_
#define SERVER_CONNECTIONS_ACCEPT_LOOP_H_

#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/connections/call_counts.h"
#include "server/connections/connection_table.h"
#include "server/connections/listening_socket.h"
#include "server/operations/log/repeat_filter.h"
#include "server/service/worker_pool.h"

namespace routing_replay::server {

enum class ConnectionEvent {
  kOpened,
  kEnded,
  kRefused,  // It was one too many, of all or of its address.
  kCut,      // It began calls and took them back, without end.
  kWaiting,  // No descriptor is to be had; connections wait until there is one.
};

// Limits with those connections at most for which the process has descriptors.
ConnectionLimits WithinDescriptors(ConnectionLimits limits);

class AcceptLoop {
 public:
  // `told`: on the thread of the loop. The last three are logged, too.
  using Told = std::function<void(ConnectionEvent event)>;
  AcceptLoop(const ConnectionLimits& limits, Told told);
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;
  ~AcceptLoop();

  // For the server that is built next, which must end before this. As ListeningSocket::Open; the address with the port
  // that was chosen.
  absl::StatusOr<std::string> Listen(grpc::ServerBuilder& builder, const std::string& address,
                                     std::shared_ptr<grpc::ServerCredentials> credentials);
  // Once, when the server runs.
  void Start();
  // Who comes from here on finds nobody; those who are connected are watched as before.
  void StopListening();

 private:
  using Clock = std::chrono::steady_clock;
  struct Listener {
    ListeningSocket socket;
    std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  };
  struct Connection {
    int fd;
    std::string peer;
    uint64_t read_bytes = 0;  // When its calls were last looked at.
  };

  void Run();
  void Wake();
  void Watch(int fd, uint32_t events, uint64_t tag) const;
  void SetListening(bool listening);
  void Accept(const Listener& listener, int listening_fd);
  void HandOver(const Listener& listener, int listening_fd, int fd, const Peer& peer);
  void WaitForDescriptors();
  void End(ConnectionTable::Id id);
  void LookAtCalls();
  void Tell(ConnectionEvent event, const char* name, const std::string& peer);

  const Told told_;
  const int epoll_, wake_;
  std::vector<Listener> listeners_;
  std::atomic<bool> stop_listening_{false}, stop_{false};
  // Of the thread:
  bool listening_ = false;
  Clock::time_point resume_;  // Where it waits for descriptors.
  ConnectionTable table_;
  std::map<ConnectionTable::Id, Connection> connections_;
  ConnectionTable::Id last_asked_ = 0;
  CallCountReader counts_;
  // gRPC works on a connection in the thread that hands it over for as long as its peer sends without a pause, so that
  // must not be the one that looks at the calls. What waits is one address's alone.
  WorkerPool hand_over_{{.threads = 64, .threads_of_an_owner = 32, .waiting_of_an_owner = 256}};
  RepeatFilter told_lines_;
  std::thread thread_;
};

}  // namespace routing_replay::server

#endif  // SERVER_CONNECTIONS_ACCEPT_LOOP_H_
