// Ctrl-C (SIGINT) and SIGTERM, kept away from what must not be cut in the middle.
#ifndef CLIENT_RRCTL_INTERRUPT_H_
#define CLIENT_RRCTL_INTERRUPT_H_

#include <signal.h>

#include <chrono>

namespace routing_replay::client {

// Holds both signals back in the thread that makes it and in the threads that it starts afterwards, so it is made
// before any other thread. One at a time.
class HeldInterrupts {
 public:
  HeldInterrupts();
  ~HeldInterrupts();
  HeldInterrupts(const HeldInterrupts&) = delete;
  HeldInterrupts& operator=(const HeldInterrupts&) = delete;

  // While one is there the process may end: Ctrl-C ends it with status 0 at once, unless it is ignored, and SIGTERM as
  // ever.
  class Window {
   public:
    explicit Window(const HeldInterrupts& held);
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;

   private:
    const HeldInterrupts& held_;
    struct sigaction before_ {};
  };

  // Waits for one of the signals, at most `timeout`, and takes it. True if it came; from then on the next one ends the
  // process.
  bool WaitFor(std::chrono::milliseconds timeout);

 private:
  sigset_t signals_;
  sigset_t before_;
};

// Ends the process as SIGPIPE does, whatever becomes of that signal here otherwise.
[[noreturn]] void EndByBrokenPipe();

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_INTERRUPT_H_
