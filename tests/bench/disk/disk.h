// The service over a disk that takes its time to sync: how many appends share a sync, and what reads beside them wait.
#ifndef TESTS_BENCH_DISK_DISK_H_
#define TESTS_BENCH_DISK_DISK_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Appends per second of 16 writers beside one, and the median time of a small read beside 16 writers and without any.
absl::StatusOr<std::vector<Figure>> BenchDisk(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_DISK_DISK_H_
