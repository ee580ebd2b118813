// Threads for calls that wait.
#ifndef CLIENT_C_API_THREADS_H_
#define CLIENT_C_API_THREADS_H_

#include <cstddef>
#include <deque>
#include <functional>

#include "proto/wire/mutex.h"

namespace routing_replay::c_api {

// Makes threads as they are needed, and lets them go when they were idle for some seconds. Thread-safe.
class Threads {
 public:
  static constexpr size_t kMost = 256;

  // Of the library; lives for ever.
  static Threads& Shared();

  // Runs `work` on one of them soon, in the order of the calls as far as there are threads; here where there is none,
  // and none to be had.
  void Run(std::function<void()> work);

 private:
  // Whether one of them will do it.
  bool Take(std::function<void()>& work);
  void Loop();
  // Whether there is another one now.
  bool Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;
  CondVar work_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t threads_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_THREADS_H_
