// Accepts the connections of a gRPC server, in place of gRPC's own listener. gRPC's listener stops forever when no
// descriptor is free, accepts any number of connections, and lets each of them begin and cancel any number of calls.
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
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "server/admission/worker_pool.h"
#include "server/log/event_log.h"

namespace routing_replay::server {

// The listening sockets of one address. The destructor closes them and removes the path of a Unix socket.
class ListeningSocket {
 public:
  // `address`: host:port, [v6]:port or unix:PATH. For a host name, listens on each of its addresses that this machine
  // has; for 0.0.0.0 and [::] on all addresses of the machine, including IPv6 if available. A Unix socket replaces an
  // existing one, and only the server's user and group can use it. UNAVAILABLE naming address and reason.
  static absl::StatusOr<ListeningSocket> Open(const std::string& address);
  ListeningSocket(ListeningSocket&& other) noexcept;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  // One or more non-blocking sockets.
  const std::vector<int>& fds() const { return fds_; }
  // The address on which it listens. If the given port was 0, it has the port that the system chose.
  const std::string& address() const { return address_; }

 private:
  ListeningSocket() = default;
  absl::Status OpenUnix(const std::string& path);
  absl::Status OpenTcp(const std::string& host, const std::string& port);

  std::vector<int> fds_;
  std::string address_;
  std::string path_;
};

// Limits on connections, in all and per address, and on their calls.
struct ConnectionLimits {
  int64_t connections = 10000;
  int64_t per_address = 1000;     // Does not apply to Unix sockets.
  int64_t calls_at_a_time = 256;  // Open calls of a connection; see kUnansweredCalls.
};

// The calls of one connection since it was opened.
struct CallCounts {
  int64_t begun = 0;
  int64_t done = 0;  // Calls that ended normally, with an answer to a complete request.
};

// Calls that a connection begins and does not finish within kCallWindow, beyond those that it may have open, are
// "unanswered". If the connections with at least kFewCalls of them have more than kUnansweredCalls in all, these
// connections are cut. A client that cancels a call now and then never has that many.
inline constexpr int64_t kUnansweredCalls = 2048;
inline constexpr int64_t kFewCalls = 512;
inline constexpr std::chrono::milliseconds kCallWindow(1000);
// After a connection was cut, its address gets at most one new connection per kPace, for 10 x kPace. Each time that one
// of these connections is cut, too, the slow-down begins again with both times doubled: 2 s, 4 s, … up to kLongestPace.
inline constexpr std::chrono::milliseconds kPace(1000), kLongestPace(32'000);

struct Peer {
  std::string name;  // As gRPC names it: "ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234" or "unix:".
  // The key of the limits per address. For IPv6 it is the /64 network, because one machine may own all of it; for a
  // Unix socket it is empty, which means no limit.
  std::string address;
};
Peer PeerOf(const sockaddr_storage& address);

// The open connections. Decides which peers may open more, and which connections are cut. Not thread-safe.
class ConnectionTable {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = uint64_t;

  explicit ConnectionTable(const ConnectionLimits& limits) : limits_(limits) {}

  // Adds a connection. Returns nothing if the caller must close it: it exceeds a limit, or its address is slowed down.
  std::optional<Id> Enter(const Peer& peer, Time now);
  void Leave(Id id);

  void SawCalls(Id id, const CallCounts& counts, Time now);
  // Returns the connections that must be cut because of their calls, each only once, and slows their addresses down.
  std::vector<Id> TakeSuspects(Time now);

  int64_t size() const { return static_cast<int64_t>(connections_.size()); }

 private:
  // Counts the calls of one connection in the current time window.
  class Window {
   public:
    // `fresh`: the connection is new, so all its calls so far belong to the window.
    int64_t Unanswered(const CallCounts& counts, Time now, bool fresh);

   private:
    std::optional<Time> begin_;
    CallCounts before_;
  };
  struct Connection {
    std::string address;
    Time since;
    Window window;
    int64_t unanswered = 0;
    Time seen;
    bool cut = false;
  };
  struct Penalty {
    Time since, next;
    std::chrono::milliseconds pace;
  };

  static bool IsOver(const Penalty& penalty, Time now);

  const ConnectionLimits limits_;
  Id next_ = 1;
  std::map<Id, Connection> connections_;
  std::map<std::string, int64_t> addresses_;
  std::map<std::string, Penalty> penalties_;
};

// Reads how many calls each connection of gRPC's servers in this process has begun and finished. gRPC counts them when
// their first frame arrives (channelz), so calls that no handler ever sees are included. Not thread-safe. Servers must
// be built with GRPC_ARG_ENABLE_CHANNELZ, which is gRPC's default.
class CallCountReader {
 public:
  // Counts of the connection with this peer name. Nothing if gRPC's last list of connections did not contain it.
  std::optional<CallCounts> Of(const std::string& peer);
  // Allows Of to ask gRPC for a new list, once, when it does not find a peer name in its last list.
  void LookAgain() { listed_ = false; }
  // Call it when the connection has ended: the name may be used by another connection later.
  void Forget(const std::string& peer) { sockets_.erase(peer); }

 private:
  void FindSockets();

  std::map<std::string, int64_t> sockets_;
  bool listed_ = false;
};

enum class ConnectionEvent {
  kOpened,
  kEnded,
  kRejected,  // The connection exceeds a limit, or its address is slowed down (kPace).
  kCut,       // The connection began and cancelled too many calls.
  kWaiting,   // No descriptor is free; connections wait until one is.
};

// `limits`, reduced to the number of connections for which the process has descriptors.
ConnectionLimits WithinDescriptors(ConnectionLimits limits);

class AcceptLoop {
 public:
  // `told` is called for each event, on the loop's thread. The loop also logs kRejected, kCut and kWaiting.
  using Told = std::function<void(ConnectionEvent event)>;
  AcceptLoop(const ConnectionLimits& limits, Told told);
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;
  ~AcceptLoop();

  // Adds a listener to the server that `builder` builds; the server must end before this object. Returns the address,
  // with the port that was chosen. `address` and errors as for ListeningSocket::Open.
  absl::StatusOr<std::string> Listen(grpc::ServerBuilder& builder, const std::string& address,
                                     std::shared_ptr<grpc::ServerCredentials> credentials);
  // Call it once, after the server was started.
  void Start();
  // From here on no new connections are accepted; existing ones are watched as before.
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
    uint64_t read_bytes = 0;  // Bytes read when its calls were last examined.
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
  // Used by the loop's thread:
  bool listening_ = false;
  Clock::time_point resume_;  // When to accept again, after no descriptor was free.
  ConnectionTable table_;
  std::map<ConnectionTable::Id, Connection> connections_;
  ConnectionTable::Id last_asked_ = 0;
  CallCountReader counts_;
  // Threads that hand connections over to gRPC. gRPC reads from a new connection on the thread that hands it over, as
  // long as its peer sends without a pause, so this must not be the thread that examines calls. The pool is fair, so
  // one address can only delay itself.
  WorkerPool hand_over_{{.threads = 64, .threads_of_an_owner = 32, .waiting_of_an_owner = 256}};
  RepeatFilter told_lines_;
  std::thread thread_;
};

}  // namespace routing_replay::server

#endif  // SERVER_CONNECTIONS_ACCEPT_LOOP_H_
