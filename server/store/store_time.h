// Time in stores: the deadline of a call, and the time of day that stores write down.
#ifndef SERVER_STORE_STORE_TIME_H_
#define SERVER_STORE_STORE_TIME_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "proto/wire/clock.h"

namespace routing_replay::server {

// The deadline of the call that this thread serves. While the object lives, stores that wait on this thread for
// something outside of the process stop waiting at the deadline. The deadline is not a parameter of the store's calls
// because only Redis heeds it. If several exist, the earliest counts.
class CallDeadline {
 public:
  // A time of Clock::Real().
  explicit CallDeadline(Clock::Time deadline) : before_(of_thread_) { of_thread_ = std::min(before_, deadline); }
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;
  ~CallDeadline() { of_thread_ = before_; }

  // Clock::Time::max() if this thread has no deadline.
  static Clock::Time OfThisThread() { return of_thread_; }

 private:
  static inline thread_local Clock::Time of_thread_ = Clock::Time::max();

  const Clock::Time before_;
};

// The time of day in ms, for times that are stored and later read by another server, or by this one after a restart. It
// advances with the store's clock, so a change of the machine's time does not affect it. The times of two servers
// differ as their machines' clocks do. Thread-safe.
class StoreTime {
 public:
  explicit StoreTime(const Clock& clock)
      : clock_(clock),
        offset_(std::chrono::duration_cast<std::chrono::milliseconds>(clock.TimeOfDay().time_since_epoch()) -
                SinceStart()) {}

  int64_t NowMs() const { return (SinceStart() + offset_).count(); }

 private:
  std::chrono::milliseconds SinceStart() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(clock_.Now().time_since_epoch());
  }

  const Clock& clock_;
  const std::chrono::milliseconds offset_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_STORE_TIME_H_
