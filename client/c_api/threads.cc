#include "client/c_api/threads.h"

#include <system_error>
#include <thread>
#include <utility>

#include "proto/wire/clock.h"

namespace routing_replay::c_api {

namespace {

constexpr std::chrono::seconds kIdle(5);

}  // namespace

Threads& Threads::Shared() {
  static Threads* const threads = new Threads;
  return *threads;
}

void Threads::Run(std::function<void()> work) {
  if (!Take(work)) work();
}

bool Threads::Take(std::function<void()>& work) {
  MutexLock lock(mutex_);
  const bool more = waiting_.size() >= idle_ && threads_ < kMost;
  if (!(more && Start()) && threads_ == 0) return false;
  waiting_.push_back(std::move(work));
  work_.NotifyOne();
  return true;
}

bool Threads::Start() {
  try {
    std::thread([this] { Loop(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  ++threads_;
  return true;
}

void Threads::Loop() {
  while (true) {
    std::function<void()> work;
    {
      MutexLock lock(mutex_);
      const Clock::Time end = Clock::Real().Now() + kIdle;
      ++idle_;
      while (waiting_.empty() && Clock::Real().Now() < end) work_.WaitUntil(mutex_, end);
      --idle_;
      if (waiting_.empty()) {
        --threads_;
        return;
      }
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace routing_replay::c_api
