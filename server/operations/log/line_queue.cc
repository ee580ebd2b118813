#include "server/operations/log/line_queue.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <thread>
#include <utility>

#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"

namespace routing_replay::server {
namespace {

// What cannot be written, as to a pipe without a reader, is gone.
void WriteAll(int fd, absl::string_view text) {
  while (!text.empty()) {
    const ssize_t size = write(fd, text.data(), text.size());
    if (size > 0) text.remove_prefix(static_cast<size_t>(size));
    if (size < 0 && errno == EAGAIN) {  // Somebody who shares the file made it so that writes do not wait.
      pollfd writable{.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&writable, 1, -1);
    } else if (size < 0 && errno != EINTR) {
      return;
    }
  }
}

}  // namespace

struct LineQueue::State {
  State(int to, size_t most, std::function<void(int64_t)> tell)
      : fd(to), most_bytes(most), tell_dropped(std::move(tell)) {}

  const int fd;
  const size_t most_bytes;
  const std::function<void(int64_t)> tell_dropped;
  Mutex mutex;
  CondVar changed;
  std::deque<std::string> lines ABSL_GUARDED_BY(mutex);
  size_t bytes ABSL_GUARDED_BY(mutex) = 0;  // Of lines.
  bool writing ABSL_GUARDED_BY(mutex) = false;
  int64_t dropped ABSL_GUARDED_BY(mutex) = 0;
};

LineQueue::LineQueue(int fd, size_t most_bytes, std::function<void(int64_t)> dropped)
    : state_(new State(fd, most_bytes, std::move(dropped))) {
  // Signals are for other threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([state = state_] { Write(*state); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void LineQueue::Push(std::string line) {
  MutexLock lock(state_->mutex);
  state_->bytes += line.size();
  state_->lines.push_back(std::move(line));
  while (state_->bytes > state_->most_bytes) {
    state_->bytes -= state_->lines.front().size();
    state_->lines.pop_front();
    ++state_->dropped;
  }
  state_->changed.NotifyAll();
}

int64_t LineQueue::dropped() const {
  MutexLock lock(state_->mutex);
  return state_->dropped;
}

void LineQueue::Flush(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  MutexLock lock(state_->mutex);
  while (state_->writing || !state_->lines.empty()) {
    if (!state_->changed.WaitUntil(state_->mutex, deadline)) return;
  }
}

void LineQueue::Write(State& state) {
  for (int64_t told = 0;;) {
    std::string line;
    int64_t dropped = 0;
    {
      MutexLock lock(state.mutex);
      state.writing = false;
      state.changed.NotifyAll();
      if (!state.lines.empty() || state.dropped == told) {
        while (state.lines.empty()) state.changed.Wait(state.mutex);
        line = std::move(state.lines.front());
        state.lines.pop_front();
        state.bytes -= line.size();
      }
      dropped = state.dropped;
      state.writing = true;
    }
    if (!line.empty()) {
      WriteAll(state.fd, line);
    } else {
      state.tell_dropped(dropped - std::exchange(told, dropped));
    }
  }
}

}  // namespace routing_replay::server
