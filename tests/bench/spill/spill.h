// Compares two ways to write spilled blocks: segment files, and RocksDB with the options of the RocksDB store (blobs,
// no write-ahead log). Blocks of several sizes are written until they have left memory, and read back in random order,
// in turns.
#ifndef TESTS_BENCH_SPILL_SPILL_H_
#define TESTS_BENCH_SPILL_SPILL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// GB/s and CPU seconds per GB of RocksDB, compared with segment files. INTERNAL if a read block differs.
absl::StatusOr<std::vector<Figure>> BenchSpill(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SPILL_SPILL_H_
