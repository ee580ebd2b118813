// How fast one client moves bytes into the server and out of it, compared with plain TCP and plain gRPC.
//
// The same 124 MB go in and out in messages of about 1 MiB and 4 MiB, by each way in turn, over warm connections:
//   tcp       into an existing buffer, and out of it: the floor
//   openssl   the same through SSL_write and SSL_read
//   grpc      a message with a bytes field, which the server keeps as it arrived
//   service   encoded blocks as the client library sends them, made outside the clock; the server checks, stores and
//             acknowledges them. The client's reader verifies every CRC and copies the pieces to their places
//   appender  only in: from an engine's rows of uint8; the client checks, tiles and sums them inside the clock
// The clock stops when the server has acknowledged everything, or when all bytes are in the client's buffer. After each
// pass, outside the clock, the bytes read are compared with the bytes put.
#ifndef TESTS_BENCH_SERVE_SERVE_H_
#define TESTS_BENCH_SERVE_SERVE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// DATA_LOSS if the bytes read differ. Call it before this process has threads.
absl::StatusOr<std::vector<Figure>> BenchServe(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_SERVE_H_
