// Until when the answer to a call is of use.
#ifndef SERVER_STORE_CALL_DEADLINE_H_
#define SERVER_STORE_CALL_DEADLINE_H_

#include <algorithm>

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

}  // namespace routing_replay::server

#endif  // SERVER_STORE_CALL_DEADLINE_H_
