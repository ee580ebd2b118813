// Time in stores: until when a call's answer is of use, and the time of day that stores write down.
#ifndef SERVER_STORE_STORE_TIME_H_
#define SERVER_STORE_STORE_TIME_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "proto/wire/clock.h"

namespace routing_replay::server {

// In force on the thread that made it, until it ends: a store that waits there for something outside of this process
// waits no longer. It is no parameter of the store's calls because most stores never wait. Of several the earliest
// holds.
class CallDeadline {
 public:
  // By Clock::Real().
  explicit CallDeadline(Clock::Time deadline) : before_(of_thread_) { of_thread_ = std::min(before_, deadline); }
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;
  ~CallDeadline() { of_thread_ = before_; }

  // Clock::Time::max() where none is in force.
  static Clock::Time OfThisThread() { return of_thread_; }

 private:
  static inline thread_local Clock::Time of_thread_ = Clock::Time::max();

  const Clock::Time before_;
};

// The time of day as servers write it down, for themselves after a restart or for each other, in ms. It goes on as the
// store's clock does; two servers' differ as their machines' clocks do. Thread-safe.
class StoreTime {
 public:
  explicit StoreTime(const Clock& clock)
      : clock_(clock),
        offset_(std::chrono::duration_cast<std::chrono::milliseconds>(clock.TimeOfDay().time_since_epoch()) -
                SinceStart()) {}
  // A time of its own, which is `now_ms` at first.
  StoreTime(const Clock& clock, int64_t now_ms)
      : clock_(clock), offset_(std::chrono::milliseconds(now_ms) - SinceStart()) {}

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
