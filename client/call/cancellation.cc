#include "client/call/cancellation.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace routing_replay::client {

namespace {

constinit thread_local Cancellation* call_of_thread = nullptr;

}  // namespace

void Cancellation::Cancel() {
  MutexLock lock(mutex_);
  if (cancelled_.exchange(true)) return;
  for (const std::function<void()>& callback : callbacks_) callback();
}

void Cancellation::BreakOff() {
  MutexLock lock(mutex_);
  if (kept_ || cancelled() || broken_off_.exchange(true)) return;
  for (const std::function<void()>& callback : callbacks_) callback();
}

CallScope::CallScope(Cancellation* call) : before_(std::exchange(call_of_thread, call)) {}

CallScope::~CallScope() { call_of_thread = before_; }

Cancellation* CallOfThread() { return call_of_thread; }

absl::Status CheckCall() {
  if (call_of_thread == nullptr) return absl::OkStatus();
  if (call_of_thread->over()) return absl::CancelledError("the call was cancelled");
  const std::optional<Clock::Time>& deadline = call_of_thread->deadline();
  if (deadline && Clock::Real().Now() >= *deadline)
    return absl::DeadlineExceededError("the call did not end before its deadline");
  return absl::OkStatus();
}

absl::Status KeepCall() {
  if (call_of_thread == nullptr) return absl::OkStatus();
  MutexLock lock(call_of_thread->mutex_);
  if (call_of_thread->broken_off()) return absl::CancelledError("the call was interrupted");
  call_of_thread->kept_ = true;
  return absl::OkStatus();
}

Clock::Time DeadlineOfCall(std::chrono::milliseconds otherwise) {
  if (call_of_thread != nullptr && call_of_thread->deadline()) return *call_of_thread->deadline();
  return DeadlineAfter(Clock::Real().Now(), otherwise);
}

Clock::Time NoLaterThanCall(Clock::Time deadline) {
  if (call_of_thread == nullptr || !call_of_thread->deadline()) return deadline;
  return std::min(deadline, *call_of_thread->deadline());
}

std::chrono::system_clock::time_point GrpcDeadline(Clock::Time deadline) {
  const Clock::Duration left = deadline - Clock::Real().Now();
  return std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
}

void SleepInCall(Clock::Duration duration) {
  if (call_of_thread == nullptr) return std::this_thread::sleep_for(duration);
  const Clock::Time until = NoLaterThanCall(Clock::Real().Now() + duration);
  Mutex mutex;
  CondVar cancelled;
  const OnCancel wake(mutex, cancelled);
  MutexLock lock(mutex);
  while (!call_of_thread->over() && Clock::Real().Now() < until) cancelled.WaitUntil(mutex, until);
}

OnCancel::OnCancel(std::function<void()> callback) : call_(call_of_thread) {
  if (call_ == nullptr) return;
  MutexLock lock(call_->mutex_);
  if (call_->over()) callback();
  at_ = call_->callbacks_.insert(call_->callbacks_.end(), std::move(callback));
}

OnCancel::OnCancel(Mutex& mutex, CondVar& changed)
    : OnCancel([&] {
        MutexLock lock(mutex);
        changed.NotifyAll();
      }) {}

OnCancel::~OnCancel() {
  if (call_ == nullptr) return;
  MutexLock lock(call_->mutex_);
  call_->callbacks_.erase(at_);
}

}  // namespace routing_replay::client
