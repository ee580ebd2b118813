#include "client/call/log.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "client/call/cancellation.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {

namespace {

constexpr size_t kLines = 1000;

struct Lines {
  Mutex mutex;
  CondVar changed;
  bool wanted ABSL_GUARDED_BY(mutex) = false;
  std::deque<std::string> lines ABSL_GUARDED_BY(mutex);
};

Lines& AllLines() {
  static Lines* const lines = new Lines;
  return *lines;
}

}  // namespace

void Log(std::string line) {
  Lines& all = AllLines();
  MutexLock lock(all.mutex);
  if (!all.wanted) return;
  if (all.lines.size() == kLines) all.lines.pop_front();
  all.lines.push_back(std::move(line));
  all.changed.NotifyAll();
}

absl::StatusOr<std::vector<std::string>> TakeLogLines() {
  Lines& all = AllLines();
  const OnCancel wake(all.mutex, all.changed);
  const Clock::Time until = DeadlineOfCall(std::chrono::hours(24));
  MutexLock lock(all.mutex);
  all.wanted = true;
  while (all.lines.empty()) {
    RR_RETURN_IF_ERROR(CheckCall());
    all.changed.WaitUntil(all.mutex, until);
    if (Clock::Real().Now() >= until && all.lines.empty())
      return absl::DeadlineExceededError("timed out waiting for a log line");
  }
  std::vector<std::string> taken(std::make_move_iterator(all.lines.begin()), std::make_move_iterator(all.lines.end()));
  all.lines.clear();
  return taken;
}

}  // namespace routing_replay::client
