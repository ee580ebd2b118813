#include "server/service/worker_pool.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

constexpr int32_t kRetryAfterMs = 500;

absl::Status TooMany(size_t waiting) {
  ErrorDetail detail{.reason = Reason::kOverBudget, .field = "control-calls"};
  detail.retry_after_ms = kRetryAfterMs;
  return MakeError(absl::StatusCode::kResourceExhausted,
                   absl::StrCat("control-calls: ", waiting, " calls wait for a thread already; try again later"),
                   detail);
}

}  // namespace

void WorkerPool::Finish() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    finishing_ = true;
    threads.swap(threads_);
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

absl::Status WorkerPool::Run(std::function<void()> work) {
  MutexLock lock(mutex_);
  if (finishing_) {
    return MakeError(absl::StatusCode::kUnavailable, "the server is shutting down", {.reason = Reason::kDraining});
  }
  if (waiting_.size() >= limits_.waiting) return TooMany(waiting_.size());
  waiting_.push_back(std::move(work));
  if (waiting_.size() > idle_ && threads_.size() < limits_.threads) threads_.emplace_back([this] { Work(); });
  changed_.NotifyOne();
  return absl::OkStatus();
}

void WorkerPool::Work() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(mutex_);
      ++idle_;
      while (waiting_.empty() && !finishing_) changed_.Wait(mutex_);
      --idle_;
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace routing_replay
