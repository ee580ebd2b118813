// Limits that keep one client or run from using up the server: open calls per connection, memory of waiting reads, and
// bytes that are stored for a run or promised to it as credit.
#ifndef SERVER_ADMISSION_CALL_LIMITS_H_
#define SERVER_ADMISSION_CALL_LIMITS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// One caller's share of a limit, such as an open call. Given back on destruction, so the limit must outlive it.
class Place {
 public:
  explicit Place(std::function<void()> leave) : leave_(std::move(leave)) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { leave_(); }

 private:
  const std::function<void()> leave_;
};

// Limits the open calls of each connection. gRPC announces this limit to its peers, but enforces it only for those that
// acknowledge it; this class rejects calls of every other one, too.
//
// Thread-safe.
class ConnectionCalls {
 public:
  // `max_streams`: the limit that the server announces to every peer.
  explicit ConnectionCalls(int64_t max_streams) : max_streams_(max_streams) {}

  // Counts one more open call of a connection. `peer`: the connection's name in gRPC. Null, without a limit, for a Unix
  // socket: all of its connections have the same name. RESOURCE_EXHAUSTED (kOverBudget, field max-streams) at twice the
  // limit: even a peer that respects the limit may begin a call before the server has noticed that another one ended.
  absl::StatusOr<std::unique_ptr<Place>> Enter(absl::string_view peer);

 private:
  void Leave(const std::string& peer);

  const int64_t max_streams_;
  Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> calls_ ABSL_GUARDED_BY(mutex_);
};

// Limits the memory of calls that wait, in all runs together. At the limit, calls of the run that uses the most memory
// are evicted to make room for calls of other runs. Thread-safe.
class WaitingRoom {
 public:
  // `tell` is called with the new total after each change, one call at a time, from any thread; it must not block.
  WaitingRoom(int64_t limit, std::function<void(int64_t bytes)> tell) : limit_(limit), tell_(std::move(tell)) {}

  // Reserves `bytes` for a waiting call of `run` until the returned Place is destroyed. If too few bytes are free,
  // calls of the run that holds the most are evicted: the smallest call that frees enough, or else several, the largest
  // first; among calls of equal size, the one that has waited longest. But if that run, minus the missing bytes, would
  // hold fewer bytes than `run` with the new call, nothing is evicted, and the result is RESOURCE_EXHAUSTED
  // (kOverBudget, field waiting-reads, retry_after_ms). `leave` is called if the new call itself is evicted later: at
  // most once, from any thread, before the Place is destroyed. It must neither block nor use this object. The call's
  // bytes are then free already.
  absl::StatusOr<std::unique_ptr<Place>> Enter(const std::string& run, int64_t bytes, std::function<void()> leave);

 private:
  struct Waiting {
    std::string run;
    int64_t bytes = 0;
    std::function<void()> leave;
    bool is_sent_away = false;
  };
  using BySize = std::multimap<int64_t, Waiting*>;  // Among equal sizes, the longest wait first.
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

// Limits the bytes of each run: those in the store, plus those promised to the run as credit. Thread-safe.
class RunQuota {
 public:
  // Returns the bytes that the store holds for the run; NOT_FOUND if the run does not exist.
  using Stored = std::function<absl::StatusOr<int64_t>(absl::string_view run)>;
  // Called for each rejection, by any thread.
  using Rejected = std::function<void()>;

  // `limit`: bytes of one run; 0: no limit. `clock`, and everything that `stored` and `rejected` use, must outlive this
  // object. `stored` is called only if there is a limit, when a run asks for bytes: at most once a second for each run,
  // or ten times a second while the run seems to be full. Only one thread at a time asks about the same run.
  RunQuota(int64_t limit, const Clock& clock, Stored stored, Rejected rejected)
      : limit_(limit), clock_(clock), stored_(std::move(stored)), rejected_(std::move(rejected)) {}

  bool limits_bytes() const { return limit_ > 0; }

  // Bytes of a run's limit that were admitted and are not stored yet; given back on destruction. Move-only, not
  // thread-safe itself. The quota must outlive it.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { Release(); }

    int64_t bytes() const { return bytes_; }
    // Moves this many bytes (at most bytes()) into a separate hold.
    Hold Split(int64_t bytes);
    // Adds `other` (of the same run, or empty) to this one.
    void Merge(Hold other);
    // Gives everything back now.
    void Release();
    // Call it when the bytes are in the store. They count until the store is asked again: its answer includes them.
    void Commit();

   private:
    friend class RunQuota;
    Hold(RunQuota* quota, std::string run, int64_t bytes) : quota_(quota), run_(std::move(run)), bytes_(bytes) {}

    RunQuota* quota_ = nullptr;
    std::string run_;
    int64_t bytes_ = 0;
  };
  // Call it before `bytes` are stored for the run, or promised to it. Without a limit, returns an empty Hold.
  // RESOURCE_EXHAUSTED (kOverBudget, field run-budget, retry_after_ms) if the run is full or `bytes` do not fit.
  absl::StatusOr<Hold> Admit(absl::string_view run, int64_t bytes);
  // As Admit, but admits only as many of `bytes` as fit, at least one, without using the limit's last sixteenth.
  absl::StatusOr<Hold> AdmitUpTo(absl::string_view run, int64_t bytes);

 private:
  struct Use {
    int64_t stored = 0;     // Bytes in the store, by its last answer.
    int64_t committed = 0;  // Bytes committed since the store was last asked.
    int64_t settling = 0;   // Bytes committed earlier that the store's last answer does not include.
    int64_t held = 0;       // Bytes of Hold objects.
    bool looking = false;
    bool known = false;                 // The store has answered at least once.
    std::optional<Clock::Time> looked;  // When the store was last asked.
    int64_t bytes() const { return stored + committed + settling + held; }
  };

  // Admits from `least` to `most` bytes. `limit`: for all bytes of the run.
  absl::StatusOr<Hold> Take(absl::string_view run, int64_t least, int64_t most, int64_t limit);
  absl::StatusOr<Hold> TryTake(absl::string_view run, int64_t least, int64_t most, int64_t limit);
  // Asks the store how many bytes the run has stored, unless it was asked less than `interval` ago. Returns true if the
  // store was asked and answered.
  bool LookAgain(absl::string_view run, Clock::Duration interval);
  // Returns true if it is time to ask the store again. The bytes committed so far then become Use::settling, which the
  // answer includes and replaces. If another thread is asking about this run for the first time, waits for its answer.
  bool BeginLook(absl::string_view run, Clock::Duration interval);
  // Forgets runs that have no held bytes and did not ask for any lately. When one asks again, the store is asked, too.
  void ForgetIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t limit_;
  const Clock& clock_;
  const Stored stored_;
  const Rejected rejected_;
  Mutex mutex_;
  CondVar looked_;
  Clock::Time forget_at_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Use, std::less<>> uses_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_ADMISSION_CALL_LIMITS_H_
