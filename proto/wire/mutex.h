// The lock that the whole project uses: std::mutex with Abseil's thread-safety annotations.
//
// Not absl::Mutex: the packaged Abseil is built without instrumentation, and ThreadSanitizer then reports races that
// do not exist.
#ifndef PROTO_WIRE_MUTEX_H_
#define PROTO_WIRE_MUTEX_H_

#include <pthread.h>

#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace routing_replay {
inline namespace wire {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  void Wait(Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    // condition_.wait is a symbol of GCC 12's libstdc++, which some systems that the wheels support do not have.
    pthread_cond_wait(condition_.native_handle(), mutex.mutex_.native_handle());
  }
  // False if `deadline` passed first. Spurious wake-ups happen: test the condition in a loop.
  template <typename TimePoint>
  bool WaitUntil(Mutex& mutex, TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const auto status = condition_.wait_until(lock, deadline);
    lock.release();
    return status == std::cv_status::no_timeout;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MUTEX_H_
