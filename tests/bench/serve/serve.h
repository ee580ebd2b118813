// How fast one client moves bytes into the server and out of it, beside plain TCP and plain protobuf gRPC.
//
// The same 124 MB go in and come out in messages of about 1 MiB and 4 MiB, by each way in turn, over warm connections:
//   tcp       into a buffer that exists, and out of it: the floor
//   openssl   the same through SSL_write and SSL_read
//   grpc      a message with a bytes field, kept by the server as it arrived
//   service   encoded blocks as the client library sends them, made outside the clock; the server checks, stores and
//             acknowledges them. The client's reader checks every sum and puts the pieces where they belong
//   appender  in only: from an engine's rows of uint8; the client checks, tiles and sums them inside the clock
// The clock stops when the server has acknowledged everything, or when everything lies in the client's buffer. What
// came back is compared with what went in after each, outside the clock.
#ifndef TESTS_BENCH_SERVE_SERVE_H_
#define TESTS_BENCH_SERVE_SERVE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/common/figure.h"
#include "tests/bench/common/options.h"

namespace routing_replay::bench {

// DATA_LOSS if other bytes come back. This process may have no threads yet.
absl::StatusOr<std::vector<Figure>> BenchServe(const BenchOptions& options);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_SERVE_H_
