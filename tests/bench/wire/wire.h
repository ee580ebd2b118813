// Measures the codecs beside a memcpy of the same bytes, and counts the bytes that are sent in addition to the ids.
//
// The data is one sample of 4096 tokens for each of four models, whose ids need 7, 9, 9 and 5 bits. In each round every
// operation runs for some milliseconds, and then a memcpy of its input, both on one core. The output of the last run is
// compared with that of a simple loop.
#ifndef TESTS_BENCH_WIRE_WIRE_H_
#define TESTS_BENCH_WIRE_WIRE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Speeds count the bytes that an operation reads (zstd: the raw bytes in both directions). DATA_LOSS if an operation
// writes wrong bytes.
absl::StatusOr<std::vector<Figure>> BenchWire(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_WIRE_WIRE_H_
