// The standard hand-off with C++ at both ends, compared with its floor.
//
// One server, 4 worker and 8 rank processes; every connection is warm. A round plays each variant once: the floor
// (plain TCP: all rows into a hub once, each rank's prepared bytes out once), the service with uint8 rows, and the
// service with int32 rows. The clock runs from "the workers hold their arrays" to "all ranks hold their index buffers",
// with a barrier between ingest and fetch. Outside the clock, outputs are poisoned before each variant, and the SHA-256
// of every rank's array is compared after it. With options.beside_untuned there is a second set of processes without
// allocator tuning, and a round plays the variants with both sets.
#ifndef TESTS_BENCH_HANDOFF_HANDOFF_H_
#define TESTS_BENCH_HANDOFF_HANDOFF_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// DATA_LOSS if a rank's array is not the expected one. Call it before this process has threads.
absl::StatusOr<std::vector<Figure>> BenchHandoff(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_HANDOFF_H_
