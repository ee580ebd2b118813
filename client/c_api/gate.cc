#include "client/c_api/gate.h"

#include <pthread.h>

#include <memory>

namespace routing_replay::c_api {

namespace {

// Number of C functions that this thread is inside of; above 1 if a callback calls another function.
constinit thread_local int depth = 0;
constinit thread_local bool forks = false;
constinit std::atomic<Gate*> of_process = nullptr;

}  // namespace

Gate& Gate::Shared() {
  static Gate* const gate = new Gate;
  return *gate;
}

// After a fork without rr_fork_before, the child cannot use the library: its locks may be held by threads that exist
// only in the parent.
Gate::Gate() {
  of_process = this;
  pthread_atfork(nullptr, nullptr, [] {
    if (!forks) of_process.load()->usable_ = false;
  });
}

bool Gate::Enter() {
  if (depth++ > 0 || !usable_) return usable_;
  inside_.fetch_add(1);
  if (!shut_) return true;
  GoOut();
  MutexLock lock(mutex_);
  while (shut_) changed_.Wait(mutex_);
  inside_.fetch_add(1);
  return true;
}

void Gate::Leave() {
  if (--depth == 0 && usable_) GoOut();
}

void Gate::GoOut() {
  inside_.fetch_sub(1);
  if (!shut_) return;
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

Gate::Outside::Outside() { Shared().GoOut(); }

Gate::Outside::~Outside() {
  Gate& gate = Shared();
  MutexLock lock(gate.mutex_);
  while (gate.shut_) gate.changed_.Wait(gate.mutex_);
  gate.inside_.fetch_add(1);
}

Gate::Breakable::Breakable(client::Cancellation& call) : call_(call) {
  Gate& gate = Shared();
  MutexLock lock(gate.mutex_);
  gate.calls_.insert(&call);
  if (gate.shut_) call.BreakOff();
}

Gate::Breakable::~Breakable() {
  MutexLock lock(Shared().mutex_);
  Shared().calls_.erase(&call_);
}

bool Gate::Shut() {
  if (!usable_) return false;
  MutexLock lock(mutex_);
  while (shut_) changed_.Wait(mutex_);
  shut_ = forks = true;
  for (client::Cancellation* call : calls_) call->BreakOff();
  return true;
}

bool Gate::AwaitNobody(Clock::Time deadline) {
  if (depth > 0) return false;  // The thread forks inside a callback of a call.
  MutexLock lock(mutex_);
  while (inside_ > 0 && Clock::Real().Now() < deadline) changed_.WaitUntil(mutex_, deadline);
  return inside_ == 0;
}

void Gate::Open() {
  MutexLock lock(mutex_);
  shut_ = forks = false;
  changed_.NotifyAll();
}

void Gate::BeginAnew(bool usable) {
  std::construct_at(&mutex_);
  std::construct_at(&changed_);
  usable_ = usable;
  ++generation_;
  inside_ = depth > 0 ? 1 : 0;
}

}  // namespace routing_replay::c_api
