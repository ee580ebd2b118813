#include "client/rrctl/interrupt.h"

#include <unistd.h>

namespace routing_replay::client {

void EndByBrokenPipe() {
  signal(SIGPIPE, SIG_DFL);
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_UNBLOCK, &broken_pipe, nullptr);
  raise(SIGPIPE);
  _exit(128 + SIGPIPE);
}

HeldInterrupts::HeldInterrupts() {
  sigemptyset(&signals_);
  sigaddset(&signals_, SIGINT);
  sigaddset(&signals_, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

HeldInterrupts::~HeldInterrupts() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

HeldInterrupts::Window::Window(const HeldInterrupts& held) : held_(held) {
  sigaction(SIGINT, nullptr, &before_);
  if (before_.sa_handler == SIG_DFL) {
    struct sigaction end {};
    end.sa_handler = [](int) { _exit(0); };
    sigaction(SIGINT, &end, nullptr);
  }
  pthread_sigmask(SIG_SETMASK, &held_.before_, nullptr);
}

HeldInterrupts::Window::~Window() {
  pthread_sigmask(SIG_BLOCK, &held_.signals_, nullptr);
  sigaction(SIGINT, &before_, nullptr);
}

bool HeldInterrupts::WaitFor(std::chrono::milliseconds timeout) {
  const timespec time{.tv_sec = timeout.count() / 1000, .tv_nsec = timeout.count() % 1000 * 1000000};
  if (sigtimedwait(&signals_, nullptr, &time) < 0) return false;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  return true;
}

}  // namespace routing_replay::client
