// How far a long command is, on a terminal.
#ifndef CLIENT_RRCTL_PROGRESS_H_
#define CLIENT_RRCTL_PROGRESS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "proto/wire/clock.h"

namespace routing_replay::client {

struct Progress {
  std::string phase;  // What is being done; empty: the command has one thing to do.
  int64_t done = 0;   // Units, of …
  int64_t total = 0;
  int64_t bytes = 0;  // That moved so far.
  const char* unit = "samples";
};
// Called on the command's thread.
using ShowProgress = std::function<void(const Progress&)>;

// Progress in words, with the rate and the time that is left as they follow from the mean since the phase began:
//   "append: 12 of 64 samples, 3.1 MiB, 1.2 MiB/s, 12.0 s left"
// Both are left out in a phase's first second. Not thread-safe.
class ProgressMeter {
 public:
  explicit ProgressMeter(const Clock& clock) : clock_(clock) {}
  std::string Describe(const Progress& progress);

 private:
  const Clock& clock_;
  Progress first_;  // Of the phase.
  Clock::Time start_;
  bool started_ = false;
};

// A line on standard error that is drawn over, if that is a terminal, and gone at the end. Not thread-safe.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { Draw(""); }
  void Show(const Progress& progress) {
    if (terminal_) Draw(meter_.Describe(progress));
  }

 private:
  void Draw(const std::string& text);

  const bool terminal_;
  ProgressMeter meter_{Clock::Real()};
  std::string shown_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_PROGRESS_H_
