// What one connection and one run may take of the server, so that they leave something to the others: calls at a time,
// memory of reads that wait, bytes that are stored and promised.
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

// What somebody has of a limit, until it is destroyed; before the limit is.
class Place {
 public:
  explicit Place(std::function<void()> leave) : leave_(std::move(leave)) {}
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  ~Place() { leave_(); }

 private:
  const std::function<void()> leave_;
};

// How many calls one connection may have open. gRPC enforces the limit that HTTP/2 tells a peer only for peers that
// acknowledge it; this one holds for all.
//
// Thread-safe.
class ConnectionCalls {
 public:
  // `max_streams`: that every peer is told.
  explicit ConnectionCalls(int64_t max_streams) : max_streams_(max_streams) {}

  // A call of the connection.
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
// Thread-safe.
class WaitingRoom {
 public:
  // `tell` hears of each change of what all take that wait, one after the other, from any thread; it must not wait.
  WaitingRoom(int64_t limit, std::function<void(int64_t bytes)> tell) : limit_(limit), tell_(std::move(tell)) {}

  // Where the room is full, one of the run with the most bytes is sent away, the smallest that is enough, or several,
  // the largest first, if what is missing leaves that run as much as this one then has; of those that take as much the
  // longest wait goes. Else RESOURCE_EXHAUSTED (kOverBudget, field waiting-reads, retry_after_ms), and nobody is.
  // `leave` is called at most once, from any thread, while the place lives; it must not wait, and its bytes are taken
  // as free from then on.
  absl::StatusOr<std::unique_ptr<Place>> Enter(const std::string& run, int64_t bytes, std::function<void()> leave);

 private:
  struct Waiting {
    std::string run;
    int64_t bytes = 0;
    std::function<void()> leave;
    bool is_sent_away = false;
  };
  using BySize = std::multimap<int64_t, Waiting*>;  // Of those that take as much, the longest wait first.
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

// Thread-safe.
class RunQuota {
 public:
  struct Limits {
    int64_t bytes = 0;    // Stored of a run, and promised to it; 0: no limit.
    int64_t streams = 0;  // Of a run at a time, of each kind; 0: no limit.
  };
  enum class StreamKind { kAppend, kRead };
  // The bytes that are stored of a run; NOT_FOUND if there is none.
  using Stored = std::function<absl::StatusOr<int64_t>(absl::string_view run)>;
  // Hears of each rejection: "run_bytes" or "run_streams".
  using Rejected = std::function<void(const char* quota)>;

  // `clock` and what the functions need must outlive this. `stored` is asked of a run that is to take bytes, once a
  // second, and ten times a second where it is full by what was admitted; by one thread at a time for each run, and
  // only where the bytes are limited.
  RunQuota(const Limits& limits, const Clock& clock, Stored stored, Rejected rejected)
      : limits_(limits), clock_(clock), stored_(std::move(stored)), rejected_(std::move(rejected)) {}

  bool limits_bytes() const { return limits_.bytes > 0; }
  bool limits_streams() const { return limits_.streams > 0; }

  // Bytes of a run's limit that were admitted and are not stored yet; given back on destruction. Move-only, not
  // thread-safe itself. Before the quota is destroyed.
  class Hold {
   public:
    Hold() = default;
    Hold(Hold&& other) noexcept { *this = std::move(other); }
    Hold& operator=(Hold&& other) noexcept;
    ~Hold() { ShrinkTo(0); }

    int64_t bytes() const { return bytes_; }
    // Moves this many bytes (at most bytes()) into a hold of their own.
    Hold Split(int64_t bytes);
    // Adds `other` (of the same run, or empty) to this one.
    void Merge(Hold other);
    // Gives back what is over `bytes`.
    void ShrinkTo(int64_t bytes);
    // They are in the store now: they count until the store is asked again.
    void Commit();

   private:
    friend class RunQuota;
    Hold(RunQuota* quota, std::string run, int64_t bytes) : quota_(quota), run_(std::move(run)), bytes_(bytes) {}

    RunQuota* quota_ = nullptr;
    std::string run_;
    int64_t bytes_ = 0;
  };
  // Before `bytes` are stored for the run, or promised to it: RESOURCE_EXHAUSTED (kOverBudget, field run-budget,
  // retry_after_ms) if they would be too many, or if the run has all that it may have.
  absl::StatusOr<Hold> Admit(absl::string_view run, int64_t bytes);
  // The same, of at most `bytes` and at least one. The last sixteenth of what the run may have is kept for Admit.
  absl::StatusOr<Hold> AdmitUpTo(absl::string_view run, int64_t bytes);

  // A stream of the run. Null where there is no limit. RESOURCE_EXHAUSTED (kOverBudget, field run-streams,
  // retry_after_ms).
  absl::StatusOr<std::unique_ptr<Place>> Open(absl::string_view run, StreamKind kind);

 private:
  struct Use {
    int64_t stored = 0;     // At the last look.
    int64_t committed = 0;  // Since a look began that is not over, …
    int64_t settling = 0;   // … and before: that look finds them.
    int64_t held = 0;
    bool looking = false;
    bool known = false;                 // A look has ended well.
    std::optional<Clock::Time> looked;  // When the last look began.
    int64_t bytes() const { return stored + committed + settling + held; }
  };
  struct Wish {
    int64_t least, most;
    int64_t limit;  // For all that the run has then.
  };

  absl::StatusOr<Hold> Take(absl::string_view run, const Wish& wish);
  absl::StatusOr<Hold> TryTake(absl::string_view run, const Wish& wish);
  // If the last look at the run is so long ago: whether there was a look.
  bool LookAgain(absl::string_view run, Clock::Duration interval);
  // Whether it is time; then what was committed begins to settle. Waits for the first look, if another thread has begun
  // it.
  bool BeginLook(absl::string_view run, Clock::Duration interval);
  // Runs that take nothing any more are looked at again when they do.
  void ForgetIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OverQuota(const char* limit, const char* quota, absl::string_view what) const;

  const Limits limits_;
  const Clock& clock_;
  const Stored stored_;
  const Rejected rejected_;
  Mutex mutex_;
  CondVar looked_;
  Clock::Time forget_at_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Use, std::less<>> uses_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, StreamKind>, int64_t> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_ADMISSION_CALL_LIMITS_H_
