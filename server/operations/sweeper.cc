#include "server/operations/sweeper.h"

namespace routing_replay {
namespace {

// Keeps one sweep short, so that appends are not held up.
constexpr int64_t kBatch = 1000;

}  // namespace

Sweeper::Sweeper(Store& store, Metrics& metrics, std::chrono::milliseconds interval)
    : store_(store), metrics_(metrics), thread_([this, interval] { Run(interval); }) {}

Sweeper::~Sweeper() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  stop_changed_.NotifyAll();
  thread_.join();
}

void Sweeper::Run(std::chrono::milliseconds interval) {
  auto next = std::chrono::steady_clock::now();
  while (true) {
    const int64_t removed = store_.Sweep(kBatch);
    metrics_.CountExpired(removed);
    // A full batch means that more is waiting.
    next = std::chrono::steady_clock::now() + (removed < kBatch ? interval : std::chrono::milliseconds(1));
    MutexLock lock(mutex_);
    while (!stop_ && std::chrono::steady_clock::now() < next) stop_changed_.WaitUntil(mutex_, next);
    if (stop_) return;
  }
}

}  // namespace routing_replay
