// A store's memory for a million small samples, and the time to open, look up, list and drop them, in this process
// without a server.
#ifndef TESTS_BENCH_INDEX_INDEX_H_
#define TESTS_BENCH_INDEX_INDEX_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Measures the stores `memory`, without and with a spill directory, and `rocksdb`, each in one round. The figures are
// bytes of the heap and of the budget per sample, without the expert ids and 4 bytes per plane, and times.
absl::StatusOr<std::vector<Figure>> BenchIndex(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_INDEX_INDEX_H_
