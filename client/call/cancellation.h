// How a call is broken off from outside, and by when it must have ended: for every wait of the thread that works on it.
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

// Of one call. Thread-safe.
class Cancellation {
 public:
  // `deadline`: of the whole call, in the place of the client's timeout; absent: that.
  explicit Cancellation(std::optional<Clock::Time> deadline = std::nullopt) : deadline_(deadline) {}

  // The waits of the call end soon, and it with CANCELLED.
  void Cancel();
  bool cancelled() const { return cancelled_.load(); }
  // The same for a call that is to be made again, after Renew; nothing for one that is kept (KeepCall).
  void BreakOff();
  bool broken_off() const { return broken_off_.load(); }
  // What was broken off starts again. No OnCancel of it may be left.
  void Renew() { broken_off_ = false; }
  // Either of the two.
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

// While it lives, what this thread waits for belongs to a call, which must live as long. Threads that it starts for the
// call take it over:
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

// Null where the thread works on no call that can be broken off.
Cancellation* CallOfThread();

// CANCELLED, or DEADLINE_EXCEEDED where the deadline of the call has passed.
absl::Status CheckCall();
// From here on the call of this thread does something that it must not do twice, and is not broken off any more.
// CANCELLED if it has been.
absl::Status KeepCall();
// When a wait must end that may take so long where its call says nothing: at the deadline of the call.
Clock::Time DeadlineOfCall(std::chrono::milliseconds otherwise);
// The earlier of the two.
Clock::Time NoLaterThanCall(Clock::Time deadline);
// Sleeps until then, or until the call is cancelled or its deadline passes.
void SleepInCall(Clock::Duration duration);

// Calls `callback` when the call of this thread is cancelled: from the thread that cancels, or at once if that was
// before. Not any more once this is gone, which waits for a callback that runs: so hold no lock that it takes when this
// is made or goes.
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
