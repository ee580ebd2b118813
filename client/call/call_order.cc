#include "client/call/call_order.h"

#include <chrono>

#include "client/call/cancellation.h"
#include "proto/wire/clock.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {

absl::Status CallOrder::Line::Await(uint64_t number) {
  const OnCancel wake(mutex, changed);
  const Clock::Time deadline = NoLaterThanCall(DeadlineAfter(Clock::Real().Now(), std::chrono::milliseconds::max()));
  MutexLock lock(mutex);
  while (!taken.empty() && *taken.begin() < number) {
    RR_RETURN_IF_ERROR(CheckCall());
    changed.WaitUntil(mutex, deadline);
  }
  return absl::OkStatus();
}

CallOrder::Place::~Place() {
  MutexLock lock(line_->mutex);
  line_->taken.erase(number_);
  line_->changed.NotifyAll();
}

absl::Status CallOrder::Place::Await() const { return line_->Await(number_); }

std::shared_ptr<const CallOrder::Place> CallOrder::Take() {
  MutexLock lock(line_->mutex);
  const uint64_t number = line_->next++;
  line_->taken.insert(number);
  return std::shared_ptr<const Place>(new Place(line_, number));
}

absl::Status CallOrder::AwaitAll() const {
  uint64_t next = 0;
  {
    MutexLock lock(line_->mutex);
    next = line_->next;
  }
  return line_->Await(next);
}

bool CallOrder::empty() const {
  MutexLock lock(line_->mutex);
  return line_->taken.empty();
}

}  // namespace routing_replay::client
