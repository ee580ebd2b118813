// What a store takes for what it knows of a million small samples, and what it costs to open, look up, list and drop
// them. In this process, without a server.
#ifndef TESTS_BENCH_INDEX_INDEX_H_
#define TESTS_BENCH_INDEX_INDEX_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Of the store memory without and with a spill directory, and of rocksdb: bytes of the heap per sample beside the ids
// of experts and 4 bytes per plane, bytes of the budget per sample beside the same, and times. One round of each.
absl::StatusOr<std::vector<Figure>> BenchIndex(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_INDEX_INDEX_H_
