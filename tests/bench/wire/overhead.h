// The bytes sent beside the ids: tables, message headers, and the frames of gRPC and HTTP/2.
#ifndef TESTS_BENCH_WIRE_OVERHEAD_H_
#define TESTS_BENCH_WIRE_OVERHEAD_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"

namespace routing_replay::bench {

// Shares of the payload in per cent. They are exact: the client's and the server's own code produce the messages for
// one sample of 4096 tokens (48 layers, 8 of 128) that is read as a whole, and for the standard hand-off, read by all
// its ranks.
absl::StatusOr<std::vector<Figure>> OverheadFigures(bool quick);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_WIRE_OVERHEAD_H_
