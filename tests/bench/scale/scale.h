// How wall time, CPU time and memory grow with the number of samples, bytes, layers and ranks.
#ifndef TESTS_BENCH_SCALE_SCALE_H_
#define TESTS_BENCH_SCALE_SCALE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Exponents of growth; costs at the largest size of each quantity; and costs predicted by a line for more ranks than
// were run, with the line's error at the largest number that was run. DATA_LOSS for a wrong byte.
absl::StatusOr<std::vector<Figure>> BenchScale(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SCALE_SCALE_H_
