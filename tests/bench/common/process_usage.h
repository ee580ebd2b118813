// What other processes have used, seen from outside.
#ifndef TESTS_BENCH_COMMON_PROCESS_USAGE_H_
#define TESTS_BENCH_COMMON_PROCESS_USAGE_H_

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace routing_replay::bench {

// Seconds on a CPU of the processes, exited threads included.
double CpuSeconds(absl::Span<const pid_t> pids);

// The peak of resident memory is counted from now on.
void ResetPeakMemory(absl::Span<const pid_t> pids);
// Per process: resident bytes now, and at the peak.
std::vector<int64_t> ResidentBytes(absl::Span<const pid_t> pids);
std::vector<int64_t> PeakBytes(absl::Span<const pid_t> pids);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_PROCESS_USAGE_H_
