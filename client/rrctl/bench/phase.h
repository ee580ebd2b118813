// One kind of call made many times by several workers.
#ifndef CLIENT_RRCTL_BENCH_PHASE_H_
#define CLIENT_RRCTL_BENCH_PHASE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "proto/wire/clock.h"

namespace routing_replay::client {

struct PhaseResult {
  absl::Status status;            // The first failure, which ends the phase.
  std::vector<double> latencies;  // Seconds, one per item done.
  double seconds = 0;             // From the first start to the last end.
  bool complete = false;          // All items were done.
};

// Does the item of this number.
using PhaseTask = std::function<absl::Status(int64_t item)>;

struct PhaseOptions {
  int workers = 1;
  int64_t items = 0;
  Clock::Time deadline;  // No item is started afterwards.
  // Called by the calling thread, with the number of items done, until the workers end: waits a little and is true if
  // no further item shall be started.
  std::function<bool(int64_t done)> wait;
};

// Each worker makes its task in a thread of its own, before any of them starts an item.
PhaseResult RunPhase(const PhaseOptions& options, const std::function<PhaseTask(int worker)>& make_task);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_BENCH_PHASE_H_
