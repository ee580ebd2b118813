// What spilled blocks are best written to: segment files of one's own, or RocksDB as the store of that name uses it
// (blobs, no write-ahead log). Blocks of the standard size and of others are written until they are out of memory, and
// read back in random order, by turns.
#ifndef TESTS_BENCH_SPILL_SPILL_H_
#define TESTS_BENCH_SPILL_SPILL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// GB/s and CPU seconds per GB of RocksDB beside segment files. INTERNAL if a byte comes back changed.
absl::StatusOr<std::vector<Figure>> BenchSpill(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SPILL_SPILL_H_
