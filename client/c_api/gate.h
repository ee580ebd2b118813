// The door through which every C function goes in, shut while the process forks.
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
  // Of the library; lives for ever.
  static Gate& Shared();

  // Of this thread, for one C function. Waits while the process forks. False where it must not do anything: in a child
  // that cannot use the library.
  bool Enter();
  void Leave();

  // While it lives, this thread waits in a function without being inside: it must hold no lock when this ends, and a
  // child has nothing of it.
  class Outside {
   public:
    Outside();
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
  };

  // A call that a fork may break off, as long as it lives.
  class Breakable {
   public:
    explicit Breakable(client::Cancellation& call);
    ~Breakable();
    Breakable(const Breakable&) = delete;
    Breakable& operator=(const Breakable&) = delete;

   private:
    client::Cancellation& call_;
  };

  // How many forks it is away from the process that made the library's first call.
  uint64_t generation() const { return generation_; }
  bool usable() const { return usable_; }

  // The rest is for rr_fork_before and its partners. Waits until no other thread forks, shuts, and breaks calls off.
  // False where nothing can be used anyway.
  bool Shut();
  // Whether all threads are outside by then.
  bool AwaitNobody(Clock::Time deadline);
  void Open();
  // In the child: as one that nobody uses, to be opened.
  void BeginAnew(bool usable);

 private:
  Gate();
  void GoOut();

  std::atomic<int64_t> inside_ = 0;  // Threads.
  std::atomic<bool> shut_ = false;   // Changes with mutex_ held.
  std::atomic<bool> usable_ = true;
  std::atomic<uint64_t> generation_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::set<client::Cancellation*> calls_ ABSL_GUARDED_BY(mutex_);
};

// One C function, for the thread that is in it.
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

// … and of every other: an exception, for want of memory, ends the process. Does nothing where nothing can be used.
template <typename Body>
auto Always(Body&& body) noexcept {
  const Inside inside;
  using Value = decltype(std::forward<Body>(body)());
  if (inside.usable()) return std::forward<Body>(body)();
  return Value();
}

// An object that takes part in calls: it goes while nobody forks.
class GatedObject : public Object {
 public:
  void Free() noexcept override {
    Always([this] { Object::Free(); });
  }
};

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_GATE_H_
