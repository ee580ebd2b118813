// The codecs beside memcpy of the same bytes, and what the wire takes beside the ids.
//
// On one sample of 4096 tokens for each of three models, whose ids need 7, 9 and 5 bits. In a round every operation
// runs for some milliseconds and a memcpy of its input right after it, both on one core; what the last run wrote is
// compared with what a plain loop makes.
#ifndef TESTS_BENCH_WIRE_WIRE_H_
#define TESTS_BENCH_WIRE_WIRE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// Speeds count the bytes that an operation reads (zstd: the raw bytes, both ways). DATA_LOSS if one writes other bytes
// than it should.
absl::StatusOr<std::vector<Figure>> BenchWire(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_WIRE_WIRE_H_
