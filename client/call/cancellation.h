// Cancellation and deadline of a call. Every wait of the thread that works on the call ends when either occurs.
#ifndef CLIENT_CANCELLATION_H_
#define CLIENT_CANCELLATION_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <optional>

#include "absl/status/status.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// State of one call. Thread-safe.
class Cancellation {
 public:
  // `deadline` applies to the whole call. Without one, the client's timeout applies.
  explicit Cancellation(std::optional<Clock::Time> deadline = std::nullopt) : deadline_(deadline) {}

  // Cancels the call: its waits end soon, and the call ends with CANCELLED.
  void Cancel();
  bool cancelled() const { return cancelled_.load(); }
  // Interrupts a call so that it can run again after Renew. Does nothing if the call has called KeepCall.
  void BreakOff();
  bool broken_off() const { return broken_off_.load(); }
  // Resets an interrupted call so that it can start again. No OnCancel of the call may be left.
  void Renew() { broken_off_ = false; }
  // Returns true after Cancel and after BreakOff.
  bool over() const { return cancelled() || broken_off(); }
  const std::optional<Clock::Time>& deadline() const { return deadline_; }

 private:
  friend class OnCancel;
  friend absl::Status KeepCall();
  using Callbacks = std::list<std::function<void()>>;

  const std::optional<Clock::Time> deadline_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<bool> broken_off_ = false;
  Mutex mutex_;
  bool kept_ ABSL_GUARDED_BY(mutex_) = false;
  Callbacks callbacks_ ABSL_GUARDED_BY(mutex_);
};

// While this object lives, the waits of this thread belong to `call`, which must live at least as long. If this thread
// starts other threads for the call, each needs its own scope:
//
//   std::thread([call = CallOfThread()] { CallScope scope(call); … });
class CallScope {
 public:
  explicit CallScope(Cancellation* call);
  ~CallScope();
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  Cancellation* const before_;
};

// Returns the call of this thread; null if it works on no call.
Cancellation* CallOfThread();

// Returns CANCELLED if the call was cancelled or interrupted, DEADLINE_EXCEEDED if its deadline has passed.
absl::Status CheckCall();
// Call this before an action that must not happen twice: from then on BreakOff has no effect on the call. Returns
// CANCELLED if the call was interrupted already.
absl::Status KeepCall();
// Returns the time at which a wait must end: the deadline of this thread's call, or `otherwise` from now on if there is
// none.
Clock::Time DeadlineOfCall(std::chrono::milliseconds otherwise);
// Returns the earlier of `deadline` and the deadline of the call.
Clock::Time NoLaterThanCall(Clock::Time deadline);
// Converts a deadline to gRPC's clock.
std::chrono::system_clock::time_point GrpcDeadline(Clock::Time deadline);
// Sleeps for `duration`, or until the call is cancelled or interrupted, or its deadline passes.
void SleepInCall(Clock::Duration duration);

// Calls `callback` when this thread's call is cancelled or interrupted: from the thread that does this, or at once if
// it has happened already. The destructor waits for a running callback; the callback never runs after it. So a thread
// that makes or destroys this object must not hold a lock that the callback takes.
class OnCancel {
 public:
  explicit OnCancel(std::function<void()> callback);
  // Wakes the waiters of `changed`. Takes `mutex`.
  OnCancel(Mutex& mutex, CondVar& changed);
  ~OnCancel();
  OnCancel(const OnCancel&) = delete;
  OnCancel& operator=(const OnCancel&) = delete;

 private:
  Cancellation* const call_;
  Cancellation::Callbacks::iterator at_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CANCELLATION_H_
