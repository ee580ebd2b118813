#include "client/c_api/threads.h"

#include <iterator>
#include <system_error>
#include <utility>

namespace routing_replay::c_api {

namespace {

constexpr std::chrono::seconds kIdle(5);

void JoinAll(std::list<std::thread> threads) {
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Threads& Threads::Shared() {
  static Threads* const threads = new Threads;
  return *threads;
}

bool Threads::Run(Work& work) {
  MutexLock lock(mutex_);
  const bool more = !resting_ && waiting_.size() >= idle_ && running_.size() < kMost;
  if (!(more && Start()) && running_.empty() && !resting_) return false;
  waiting_.emplace(next_++, std::move(work));
  work_.NotifyOne();
  return true;
}

bool Threads::Start() {
  const auto self = running_.emplace(running_.end());
  try {
    *self = std::thread([this, self] { Loop(self); });
  } catch (const std::system_error&) {
    running_.erase(self);
    return false;
  }
  return true;
}

void Threads::Loop(Running::iterator self) {
  while (true) {
    uint64_t place = 0;
    Work work;
    {
      MutexLock lock(mutex_);
      const Clock::Time end = Clock::Real().Now() + kIdle;
      ++idle_;
      while (waiting_.empty() && !resting_ && Clock::Real().Now() < end) work_.WaitUntil(mutex_, end);
      --idle_;
      if (waiting_.empty() || resting_) break;
      auto first = waiting_.extract(waiting_.begin());
      place = first.key();
      work = std::move(first.mapped());
    }
    if (work()) continue;
    MutexLock lock(mutex_);
    waiting_.emplace(place, std::move(work));
  }
  Running before;
  {
    MutexLock lock(mutex_);
    before = std::exchange(gone_, {});
    gone_.splice(gone_.end(), running_, self);
    ended_.NotifyAll();
  }
  JoinAll(std::move(before));
}

void Threads::Rest() {
  MutexLock lock(mutex_);
  resting_ = true;
  work_.NotifyAll();
}

bool Threads::AwaitRest(Clock::Time deadline) {
  Running last;
  {
    MutexLock lock(mutex_);
    while (!running_.empty() && Clock::Real().Now() < deadline) ended_.WaitUntil(mutex_, deadline);
    if (!running_.empty()) return false;
    last = std::exchange(gone_, {});
  }
  JoinAll(std::move(last));
  return true;
}

void Threads::GoOn() {
  MutexLock lock(mutex_);
  resting_ = false;
  while (running_.size() < waiting_.size() && running_.size() < kMost && Start()) {
  }
}

void Threads::BeginAnew() {
  std::map<uint64_t, Work> never;
  MutexLock lock(mutex_);
  resting_ = false;
  never = std::exchange(waiting_, {});
}

}  // namespace routing_replay::c_api
