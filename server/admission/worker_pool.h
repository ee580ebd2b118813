// A pool of threads for work that may block, used by callers whose own thread must not block. Each piece of work has an
// owner, such as a client; owners take turns, so that none can occupy the pool alone.
#ifndef SERVER_ADMISSION_WORKER_POOL_H_
#define SERVER_ADMISSION_WORKER_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {

// Thread-safe.
class WorkerPool {
 public:
  struct Limits {
    size_t threads = 128;  // Started when needed.
    size_t threads_of_an_owner = 64;
    size_t waiting_of_an_owner = 1024;
    std::string field = "control-calls";  // The field that errors name.
  };
  explicit WorkerPool(Limits limits) : limits_(std::move(limits)) {}
  ~WorkerPool() { Finish(); }

  // Runs `work` once on a pool thread. Work of one owner starts in the order of the calls; owners take turns. On an
  // error `work` is not called: RESOURCE_EXHAUSTED (kOverBudget, Limits::field, retry_after_ms) if too much work of the
  // owner is waiting, or the system cannot provide even one thread; UNAVAILABLE (kDraining) after Finish.
  absl::Status Run(const std::string& owner, std::function<void()> work);
  // Waits for all accepted work. Must not be called from a pool thread, nor by two threads at once.
  void Finish();

 private:
  struct Owner {
    std::deque<std::function<void()>> waiting;
    size_t working = 0;
  };
  using Owners = std::map<std::string, Owner>;

  struct Taken {
    std::string owner;
    std::function<void()> work;
  };

  // Returns false if the system has no more threads.
  bool AddThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work();
  // Waits until some work may begin, and takes it. Returns nothing if there is none after Finish was called.
  std::optional<Taken> Take();
  void End(const std::string& owner);
  // The owner whose turn it is; end() if no work may begin.
  Owners::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayBegin(const Owner& owner) const {
    return !owner.waiting.empty() && owner.working < limits_.threads_of_an_owner;
  }

  const Limits limits_;
  Mutex mutex_;
  CondVar changed_;
  Owners owners_ ABSL_GUARDED_BY(mutex_);     // Owners with waiting or running work.
  std::string last_ ABSL_GUARDED_BY(mutex_);  // The owner that had the last turn.
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // Pieces of work that wait, of all owners.
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace routing_replay::server

#endif  // SERVER_ADMISSION_WORKER_POOL_H_
