#include "client/rrctl/bench/phase.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <thread>
#include <utility>

#include "proto/wire/mutex.h"

namespace routing_replay::client {
namespace {

class Phase {
 public:
  explicit Phase(const PhaseOptions& options) : options_(options), ready_(options.workers), running_(options.workers) {}

  void Work(const std::function<PhaseTask(int)>& make_task, int worker) {
    const PhaseTask task = make_task(worker);
    ready_.arrive_and_wait();
    const Clock& clock = Clock::Real();
    const Clock::Time start = clock.Now();
    std::vector<double> latencies;
    absl::Status status;
    while (status.ok() && !stop_ && clock.Now() < options_.deadline) {
      const int64_t item = next_++;
      if (item >= options_.items) break;
      const Clock::Time begin = clock.Now();
      status = task(item);
      if (!status.ok()) break;
      latencies.push_back(std::chrono::duration<double>(clock.Now() - begin).count());
      ++done_;
    }
    Finish(std::move(status), std::move(latencies), start, clock.Now());
  }

  PhaseResult Wait() {
    while (running_ > 0) {
      if (options_.wait(done_)) stop_ = true;
    }
    MutexLock lock(mutex_);
    result_.seconds = std::chrono::duration<double>(end_ - start_).count();
    result_.complete = done_ == options_.items;
    return std::move(result_);
  }

 private:
  void Finish(absl::Status status, std::vector<double> latencies, Clock::Time start, Clock::Time end) {
    {
      MutexLock lock(mutex_);
      if (result_.status.ok() && !status.ok()) {
        result_.status = std::move(status);
        stop_ = true;
      }
      result_.latencies.insert(result_.latencies.end(), latencies.begin(), latencies.end());
      start_ = std::min(start_, start);
      end_ = std::max(end_, end);
    }
    --running_;
  }

  const PhaseOptions& options_;
  std::barrier<> ready_;
  std::atomic<int64_t> next_ = 0;
  std::atomic<int64_t> done_ = 0;
  std::atomic<bool> stop_ = false;
  std::atomic<int> running_;
  Mutex mutex_;
  PhaseResult result_ ABSL_GUARDED_BY(mutex_);
  Clock::Time start_ ABSL_GUARDED_BY(mutex_) = Clock::Time::max();
  Clock::Time end_ ABSL_GUARDED_BY(mutex_) = Clock::Time::min();
};

}  // namespace

PhaseResult RunPhase(const PhaseOptions& options, const std::function<PhaseTask(int worker)>& make_task) {
  Phase phase(options);
  std::vector<std::jthread> threads;
  for (int i = 0; i < options.workers; ++i) threads.emplace_back([&, i] { phase.Work(make_task, i); });
  return phase.Wait();
}

}  // namespace routing_replay::client
