#include "client/c_api/threads.h"

#include <csignal>
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
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(work));
  if (waiting_.size() > idle_ && threads_ < kMost) return Start();
  work_.NotifyOne();
}

// Signals are for the host's threads.
void Threads::Start() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { Loop(); }).detach();
    ++threads_;
  } catch (const std::system_error&) {
    // Those that there are do it later.
    if (threads_ == 0) std::terminate();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
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
