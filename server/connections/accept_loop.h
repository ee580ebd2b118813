// Takes the connections of a gRPC server, in gRPC's place: gRPC's own listener ends for good where no descriptor is
// free, takes as many connections as come, and lets each begin and take back as many calls as it likes.
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

// Sockets that listen where `--listen` says; closes them, and removes the path of a Unix socket.
class ListeningSocket {
 public:
  // host:port, [v6]:port or unix:PATH. A name listens on each of its addresses that this machine has; 0.0.0.0 and [::]
  // on all of the machine, IPv6 where there is any. A Unix socket takes the place of one that is there, and is closed
  // to others than the server's user and group. UNAVAILABLE: "cannot listen on ADDRESS: " and why.
  static absl::StatusOr<ListeningSocket> Open(const std::string& address);
  ListeningSocket(ListeningSocket&& other) noexcept;
  ListeningSocket& operator=(ListeningSocket&&) = delete;
  ~ListeningSocket();

  // One or more, which do not block.
  const std::vector<int>& fds() const { return fds_; }
  // With the port that was chosen where it was 0.
  const std::string& address() const { return address_; }

 private:
  ListeningSocket() = default;
  absl::Status OpenUnix(const std::string& path);
  absl::Status OpenTcp(const std::string& host, const std::string& port);

  std::vector<int> fds_;
  std::string address_;
  std::string path_;
};

// Who is connected, and who may: a cap on connections in all and of each address, and how their calls end.
struct ConnectionLimits {
  int64_t connections = 10000;
  int64_t per_address = 1000;     // Of those of Unix sockets there may be as many as in all.
  int64_t calls_at_a_time = 256;  // That a connection may have open; see kUnansweredCalls.
};

// Of calls: since its beginning, of one connection or of all.
struct CallCounts {
  int64_t begun = 0;
  int64_t done = 0;  // Of these: that ended as calls do, with an answer to a whole request.
};

// Calls that were begun and not done within kCallWindow, beyond those that may be open: what a client that takes back a
// call now and then never comes to. With more in all, those connections are cut that have kFewCalls or more.
inline constexpr int64_t kUnansweredCalls = 2048;
inline constexpr int64_t kFewCalls = 512;
inline constexpr std::chrono::milliseconds kCallWindow(1000);
// An address of which a connection was cut gets one at most in each of these, ten times. It doubles, up to
// kLongestPace, each time that one of them is cut, too.
inline constexpr std::chrono::milliseconds kPace(1000), kLongestPace(32'000);

// The peer as gRPC names it ("ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234", "unix:"), and the address that it counts
// for: an IPv6 one with its network (/64), which one machine may have as a whole.
struct Peer {
  std::string name;
  std::string address;
};
Peer PeerOf(const sockaddr_storage& address);

// Not thread-safe.
class ConnectionTable {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Id = uint64_t;

  explicit ConnectionTable(const ConnectionLimits& limits) : limits_(limits) {}

  // Nothing where the connection is one too many.
  std::optional<Id> Enter(const Peer& peer, Time now);
  void Leave(Id id);

  void SawCalls(Id id, const CallCounts& counts, Time now);
  // Those that are to be cut for what was seen of them. Each counts from here on as cut.
  std::vector<Id> TakeSuspects(Time now);

  int64_t size() const { return static_cast<int64_t>(connections_.size()); }

 private:
  // Counts since the beginning of the window.
  class Window {
   public:
    // `fresh`: everything before it belongs to it, too.
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

// How many calls a connection of gRPC's servers in this process has begun and done, as gRPC counts them where frames
// come in (channelz): also calls that no handler ever sees.
// Not thread-safe. Servers must be built with GRPC_ARG_ENABLE_CHANNELZ, which is gRPC's default.
class CallCountReader {
 public:
  // Of the connection whose peer gRPC names so; nothing where gRPC knew of none when it was last asked for all.
  std::optional<CallCounts> Of(const std::string& peer);
  // From here on gRPC is asked for all again, once, where a peer is not known.
  void LookAgain() { listed_ = false; }
  // The name may be another connection's from here on.
  void Forget(const std::string& peer) { sockets_.erase(peer); }

 private:
  void FindSockets();

  std::map<std::string, int64_t> sockets_;
  bool listed_ = false;
};

enum class ConnectionEvent {
  kOpened,
  kEnded,
  kRejected,  // It was one too many, of all or of its address.
  kCut,       // It began calls and took them back, without end.
  kWaiting,   // No descriptor is free; connections wait until there is one.
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
