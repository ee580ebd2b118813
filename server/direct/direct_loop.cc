#include "server/direct/direct_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace routing_replay::server {
namespace {

constexpr uint64_t kWakeNumber = 0;
constexpr std::chrono::seconds kLook(1);

// The loop that this thread serves.
thread_local const DirectLoop* served_here = nullptr;

}  // namespace

DirectLoop::DirectLoop() : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  Watch(kWakeNumber, wake_, EPOLLIN);
}

DirectLoop::~DirectLoop() {
  sockets_.clear();
  close(wake_);
  close(epoll_);
}

void DirectLoop::Start() {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "direct-loop");
    Serve();
  });
}

void DirectLoop::Wake() {
  if (served_here == this) return;  // This thread takes what was posted before it waits again.
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof(one));
}

void DirectLoop::Post(CallAlarm& /*alarm*/, CallEvent& event) {
  MutexLock lock(mutex_);
  posted_.push_back({&event, true});
  Wake();
}

void DirectLoop::Run(std::function<void()> task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  Wake();
}

void DirectLoop::Drain() {
  Run([this] { DrainCalls(); });
}

void DirectLoop::SetAlarm(CallAlarm& alarm, Time time, CallEvent& event) {
  MutexLock lock(mutex_);
  timer_of_.insert_or_assign(&alarm, timers_.emplace(time, Timer{&alarm, &event}));
}

void DirectLoop::CancelAlarm(CallAlarm& alarm) {
  MutexLock lock(mutex_);
  const auto found = timer_of_.find(&alarm);
  if (found == timer_of_.end()) return;
  posted_.push_back({found->second->second.event, false});
  timers_.erase(found->second);
  timer_of_.erase(found);
  Wake();
}

void DirectLoop::ShutdownAndJoin() {
  if (!thread_.joinable()) return DeleteCalls();
  Run([this] {
    ending_ = true;
    const auto sockets = sockets_;  // A copy: Close removes each socket from sockets_.
    for (const auto& [number, socket] : sockets) socket->Close();
  });
  thread_.join();
}

uint64_t DirectLoop::Add(std::shared_ptr<LoopSocket> socket, int fd, uint32_t events) {
  const uint64_t number = next_++;
  sockets_.emplace(number, std::move(socket));
  Watch(number, fd, events);
  return number;
}

void DirectLoop::Watch(uint64_t number, int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.u64 = number}};
  if (epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event) != 0) epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
}

void DirectLoop::Forget(uint64_t number, int fd) {
  epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  sockets_.erase(number);
}

void DirectLoop::Serve() {
  served_here = this;
  while (true) {
    const int timeout_ms = TakePosted();
    const std::vector<Ready> ready = std::exchange(ready_, {});
    for (const Ready& one : ready) HandleEvent(one.event, one.ok);
    if (ending_ && empty()) return;
    OnSockets(ready.empty() ? timeout_ms : 0);
    LookAtAll();
  }
}

int DirectLoop::TakePosted() {
  std::vector<std::function<void()>> tasks;
  int timeout_ms = -1;
  {
    MutexLock lock(mutex_);
    ready_.insert(ready_.end(), posted_.begin(), posted_.end());
    posted_.clear();
    tasks.swap(tasks_);
    const Time now = Clock::Real().Now();
    while (!timers_.empty() && timers_.begin()->first <= now) {
      ready_.push_back({timers_.begin()->second.event, true});
      timer_of_.erase(timers_.begin()->second.alarm);
      timers_.erase(timers_.begin());
    }
    constexpr std::chrono::milliseconds kLongest = kLook;
    if (!timers_.empty()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(
          std::min<Time::duration>(timers_.begin()->first - now, kLongest));
      timeout_ms = static_cast<int>(left.count());
    }
    if (!sockets_.empty() && timeout_ms < 0) timeout_ms = static_cast<int>(kLongest.count());
  }
  for (const std::function<void()>& task : tasks) task();
  return ready_.empty() && tasks.empty() ? timeout_ms : 0;
}

void DirectLoop::OnSockets(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kWakeNumber) {
      uint64_t times = 0;
      [[maybe_unused]] const ssize_t taken = read(wake_, &times, sizeof(times));
      continue;
    }
    const auto found = sockets_.find(events[i].data.u64);
    if (found == sockets_.end()) continue;
    const std::shared_ptr<LoopSocket> socket = found->second;  // Keeps the socket alive if it is removed meanwhile.
    socket->OnReady(events[i].events);
  }
}

void DirectLoop::LookAtAll() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLook) return;
  looked_ = now;
  const auto sockets = sockets_;
  for (const auto& [number, socket] : sockets) socket->OnSecond(now);
}

}  // namespace routing_replay::server
