// The service on a disk with slow syncs: how many appends share a sync, and how long reads wait meanwhile.
#ifndef TESTS_BENCH_DISK_DISK_H_
#define TESTS_BENCH_DISK_DISK_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Appends per second of 16 writers compared with one, and the median time of a small read with 16 writers and without.
absl::StatusOr<std::vector<Figure>> BenchDisk(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_DISK_DISK_H_
