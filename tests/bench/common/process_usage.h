// CPU time and memory of other processes, read from /proc.
#ifndef TESTS_BENCH_COMMON_PROCESS_USAGE_H_
#define TESTS_BENCH_COMMON_PROCESS_USAGE_H_

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace routing_replay::bench {

// CPU seconds of the processes, including their exited threads.
double CpuSeconds(absl::Span<const pid_t> pids);

// Resets the recorded peak of resident memory to the present value.
void ResetPeakMemory(absl::Span<const pid_t> pids);
// Resident bytes of each process: at present (ResidentBytes), and the most since the last reset (PeakBytes).
std::vector<int64_t> ResidentBytes(absl::Span<const pid_t> pids);
std::vector<int64_t> PeakBytes(absl::Span<const pid_t> pids);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_PROCESS_USAGE_H_
