// The gate that every C function passes. It is closed while the process forks.
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
  // The only instance in the library; never destroyed.
  static Gate& Shared();

  // Called by a C function before it does anything. Waits while the process forks. Returns false in a child that cannot
  // use the library; the function must then do nothing.
  bool Enter();
  void Leave();

  // While this object lives, the thread waits and does not count as inside a function, so that the process may fork.
  // The thread must hold no lock when the object is destroyed, and does not exist in a child.
  class Outside {
   public:
    Outside();
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
  };

  // While this object lives, a fork may interrupt the call.
  class Breakable {
   public:
    explicit Breakable(client::Cancellation& call);
    ~Breakable();
    Breakable(const Breakable&) = delete;
    Breakable& operator=(const Breakable&) = delete;

   private:
    client::Cancellation& call_;
  };

  // 0 in the process that made the library's first call, and one more in each child of a fork.
  uint64_t generation() const { return generation_; }
  bool usable() const { return usable_; }

  // The following are for rr_fork_before, rr_fork_in_parent and rr_fork_in_child. Shut waits until no other thread
  // forks, closes the gate, and interrupts calls. Returns false if the library cannot be used in this process anyway.
  bool Shut();
  // Waits until no thread is inside a C function. Returns true if this happened in time.
  bool AwaitNobody(Clock::Time deadline);
  void Open();
  // In the child: resets the gate, ready to be opened.
  void BeginAnew(bool usable);

 private:
  Gate();
  void GoOut();

  std::atomic<int64_t> inside_ = 0;  // Number of threads inside.
  std::atomic<bool> shut_ = false;   // Changed only with mutex_ held.
  std::atomic<bool> usable_ = true;
  std::atomic<uint64_t> generation_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::set<client::Cancellation*> calls_ ABSL_GUARDED_BY(mutex_);
};

// Enters the gate when a C function begins and leaves it when the function ends.
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

// Runs the body of a C function that can fail.
template <typename Body>
rr_error* Guard(Body&& body) noexcept {
  const Inside inside;
  if (!inside.usable()) {
    return NewError(absl::FailedPreconditionError(
        "routing_replay cannot be used in this process, because it was forked without stopping routing_replay first"));
  }
  return NewError(WithoutExceptions(std::forward<Body>(body)));
}

// Runs the body of a C function that cannot fail: an exception (out of memory) ends the process. Does nothing if the
// library cannot be used.
template <typename Body>
auto Always(Body&& body) noexcept {
  const Inside inside;
  using Value = decltype(std::forward<Body>(body)());
  if (inside.usable()) return std::forward<Body>(body)();
  return Value();
}

// Base of the objects that C functions work on (clients, runs, queues). Free waits while the process forks, and does
// nothing in a child that cannot use the library.
class GatedObject : public Object {
 public:
  void Free() noexcept override {
    Always([this] { Object::Free(); });
  }
};

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_GATE_H_
