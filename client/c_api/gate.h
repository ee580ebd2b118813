// The gate that every C function passes, shut while the process forks.
#ifndef CLIENT_C_API_GATE_H_
#define CLIENT_C_API_GATE_H_

#include <atomic>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "client/c_api/result.h"
#include "client/call/cancellation.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::c_api {

// Thread-safe.
class Gate {
 public:
  // The library's; never destroyed.
  static Gate& Shared();

  // For this thread and one C function. Waits while the process forks. False if the function must not do anything: in a
  // child that cannot use the library.
  bool Enter();
  void Leave();

  // While it lives, this thread waits in a function without counting as inside. The thread must hold no lock when this
  // is destroyed, and a child does not have the thread.
  class Outside {
   public:
    Outside();
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
  };

  // A call that a fork may interrupt, as long as it lives.
  class Breakable {
   public:
    explicit Breakable(client::Cancellation& call);
    ~Breakable();
    Breakable(const Breakable&) = delete;
    Breakable& operator=(const Breakable&) = delete;

   private:
    client::Cancellation& call_;
  };

  // The number of forks between this process and the one that made the library's first call.
  uint64_t generation() const { return generation_; }
  bool usable() const { return usable_; }

  // The rest is for rr_fork_before and its partners. Waits until no other thread forks, shuts the gate, and interrupts
  // calls. False if the library cannot be used anyway.
  bool Shut();
  // Returns true if all threads are outside in time.
  bool AwaitNobody(Clock::Time deadline);
  void Open();
  // In the child: resets the gate, ready to be opened.
  void BeginAnew(bool usable);

 private:
  Gate();
  void GoOut();

  std::atomic<int64_t> inside_ = 0;  // Number of threads inside.
  std::atomic<bool> shut_ = false;   // Changes with mutex_ held.
  std::atomic<bool> usable_ = true;
  std::atomic<uint64_t> generation_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::set<client::Cancellation*> calls_ ABSL_GUARDED_BY(mutex_);
};

// Passes the gate for one C function.
class Inside {
 public:
  Inside() : usable_(Gate::Shared().Enter()) {}
  ~Inside() { Gate::Shared().Leave(); }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  bool usable() const { return usable_; }

 private:
  const bool usable_;
};

// The body of every C function that can fail …
template <typename Body>
rr_error* Guard(Body&& body) noexcept {
  const Inside inside;
  if (!inside.usable()) {
    return NewError(absl::FailedPreconditionError(
        "this process was forked while routing_replay could not be brought to rest, and cannot use it"));
  }
  return NewError(WithoutExceptions(std::forward<Body>(body)));
}

// … and of every other one: an exception (out of memory) ends the process. Does nothing if the library cannot be used.
template <typename Body>
auto Always(Body&& body) noexcept {
  const Inside inside;
  using Value = decltype(std::forward<Body>(body)());
  if (inside.usable()) return std::forward<Body>(body)();
  return Value();
}

// An object that is used by calls: it is freed while nobody forks.
class GatedObject : public Object {
 public:
  void Free() noexcept override {
    Always([this] { Object::Free(); });
  }
};

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_GATE_H_
