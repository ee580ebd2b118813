// Who is connected, and who may: a cap on connections in all and of each address, and how their calls end.
#ifndef SERVER_CONNECTIONS_CONNECTION_TABLE_H_
#define SERVER_CONNECTIONS_CONNECTION_TABLE_H_

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace routing_replay::server {

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

}  // namespace routing_replay::server

#endif  // SERVER_CONNECTIONS_CONNECTION_TABLE_H_
