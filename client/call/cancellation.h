// Cancels a call from outside, and holds its deadline: every wait of the thread that works on the call observes both.
#ifndef CLIENT_CANCELLATION_H_
#define CLIENT_CANCELLATION_H_

#include <atomic>
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
  // `deadline`: for the whole call, in place of the client's timeout; absent: the client's timeout.
  explicit Cancellation(std::optional<Clock::Time> deadline = std::nullopt) : deadline_(deadline) {}

  // Ends the waits of the call soon; the call ends with CANCELLED.
  void Cancel();
  bool cancelled() const { return cancelled_.load(); }
  // Interrupts a call that is made again after Renew; does nothing for a call that called KeepCall.
  void BreakOff();
  bool broken_off() const { return broken_off_.load(); }
  // Allows the interrupted call to start again. No OnCancel of it may be left.
  void Renew() { broken_off_ = false; }
  // True after either of the two.
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

// While this object lives, the waits of this thread belong to `call`, which must live as long. Threads that this thread
// starts for the call need a scope of their own:
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

// Null if the thread works on no call.
Cancellation* CallOfThread();

// CANCELLED, or DEADLINE_EXCEEDED if the deadline of the call has passed.
absl::Status CheckCall();
// Call this before an action that must not happen twice: from here on BreakOff does nothing to the call. CANCELLED if
// it was interrupted before.
absl::Status KeepCall();
// When a wait must end that may take `otherwise` if its call has no deadline: at the deadline of the call.
Clock::Time DeadlineOfCall(std::chrono::milliseconds otherwise);
// The earlier of the two.
Clock::Time NoLaterThanCall(Clock::Time deadline);
// Sleeps for `duration`, or until the call is cancelled or its deadline passes.
void SleepInCall(Clock::Duration duration);

// Calls `callback` when the call of this thread is cancelled: from the cancelling thread, or at once if it is cancelled
// already. The destructor waits for a running callback, and no call comes after it. So hold no lock that the callback
// takes while this is made or destroyed.
class OnCancel {
 public:
  explicit OnCancel(std::function<void()> callback);
  ~OnCancel();
  OnCancel(const OnCancel&) = delete;
  OnCancel& operator=(const OnCancel&) = delete;

 private:
  Cancellation* const call_;
  Cancellation::Callbacks::iterator at_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CANCELLATION_H_
