// How many calls one connection may have open, and how much memory reads take that wait.
#ifndef SERVER_ADMISSION_CALL_LIMITS_H_
#define SERVER_ADMISSION_CALL_LIMITS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// How many calls one connection may have open, whatever its peer makes of the limit that HTTP/2 tells it: gRPC holds
// only those to that who acknowledge it.
//
// Thread-safe.
class ConnectionCalls {
 public:
  // `max_streams`: that every peer is told.
  explicit ConnectionCalls(int64_t max_streams) : max_streams_(max_streams) {}

  // A call of the connection, until it is destroyed; before what it is counted by is.
  class Place {
   public:
    Place(ConnectionCalls& calls, std::string peer) : calls_(calls), peer_(std::move(peer)) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { calls_.Leave(peer_); }

   private:
    ConnectionCalls& calls_;
    const std::string peer_;
  };
  // `peer`: the connection as gRPC names it. Null for a Unix socket, whose peers share a name.
  // RESOURCE_EXHAUSTED (kOverBudget, field max-streams) where there are twice as many as allowed: who keeps to the
  // limit may begin a call before it is known here that another one has ended.
  absl::StatusOr<std::unique_ptr<Place>> Enter(absl::string_view peer);

 private:
  void Leave(const std::string& peer);

  const int64_t max_streams_;
  Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> calls_ ABSL_GUARDED_BY(mutex_);
};

// Memory that calls take while they wait, shared among runs: where it is full, the run that has the most makes room.
//
inline constexpr char kWaitingReads[] = "waiting-reads";

// Thread-safe.
class WaitingRoom {
  struct Waiting {
    std::string run;
    int64_t bytes = 0;
    std::function<void()> leave;
    bool is_sent_away = false;
  };
  using BySize = std::multimap<int64_t, Waiting*>;  // Of those that take as much, the longest wait first.

 public:
  // `tell` hears of each change of what all take that wait, one after the other, from any thread; it must not wait.
  WaitingRoom(int64_t limit, std::function<void(int64_t bytes)> tell) : limit_(limit), tell_(std::move(tell)) {}

  // Until it is destroyed, one waits; before the room is.
  class Place {
   public:
    Place(WaitingRoom& room, std::unique_ptr<Waiting> waiting, BySize::iterator position)
        : room_(room), waiting_(std::move(waiting)), position_(position) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { room_.Leave(*waiting_, position_); }

   private:
    WaitingRoom& room_;
    const std::unique_ptr<Waiting> waiting_;
    const BySize::iterator position_;
  };
  // Where the room is full, one of the run with the most bytes is sent away, the smallest that is enough, or several,
  // the largest first, if what is missing leaves that run as much as this one then has; of those that take as much the
  // longest wait goes. Else RESOURCE_EXHAUSTED (kOverBudget, field waiting-reads, retry_after_ms), and nobody is.
  // `leave` is called at most once, from any thread, while the place lives; it must not wait, and its bytes are taken
  // as free from then on.
  absl::StatusOr<std::unique_ptr<Place>> Enter(const std::string& run, int64_t bytes, std::function<void()> leave);

 private:
  struct Run {
    int64_t bytes = 0;
    BySize waiting;
  };

  void Add(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendAway(Run& run, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Full(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(const Waiting& waiting, BySize::iterator position);

  const int64_t limit_;
  const std::function<void(int64_t bytes)> tell_;
  Mutex mutex_;
  int64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Run> runs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_ADMISSION_CALL_LIMITS_H_
