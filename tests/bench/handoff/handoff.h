// The standard hand-off, with C++ at both ends, beside its floor.
//
// One server, 4 worker and 8 rank processes; every connection is warm. A round goes once through each way: the floor
// (plain TCP: all rows into a hub once, each rank its ready bytes out once), the service from uint8, the service from
// int32. The clock runs from "the workers hold their arrays" to "all ranks hold their index buffers", with a barrier
// between ingest and fetch. Before each, outside the clock, outputs are poisoned; after each the SHA-256 of every
// rank's array is compared. With options.beside_untuned all of it exists twice, and a round goes through both.
#ifndef TESTS_BENCH_HANDOFF_HANDOFF_H_
#define TESTS_BENCH_HANDOFF_HANDOFF_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// DATA_LOSS if a rank's array is not the expected one. This process may have no threads yet.
absl::StatusOr<std::vector<Figure>> BenchHandoff(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_HANDOFF_H_
