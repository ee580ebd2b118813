// The only client of the benchmark: moves the transfer by each way on command.
#ifndef TESTS_BENCH_SERVE_SERVE_CLIENT_H_
#define TESTS_BENCH_SERVE_SERVE_CLIENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"
#include "tests/bench/serve/transfer.h"

namespace routing_replay::bench {

// Commands: "open ENDPOINT HUB_PORT TLS_HUB_PORT GRPC_PORT TLS_ENDPOINT CACERT" connects every way. In the others, WAY
// is one of kWays (serve.cc), SIZE the index of a message size, and NUMBER the transfer's number, which ascends:
//   "prepare WAY SIZE NUMBER"                       prepares the put, outside the clock
//   "put WAY SIZE NUMBER", "get WAY SIZE NUMBER"    return the seconds that they took
//   "small-put WAY NUMBER", "small-get WAY NUMBER"  make many small puts or gets and return the median
//                                                   seconds of one (appender and tcp only)
//   "poison"                                        overwrites the buffer that get fills
//   "check"                                         compares that buffer with the data that was put
absl::StatusOr<std::unique_ptr<Role>> MakeServeClient(const Transfer& transfer);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_SERVE_CLIENT_H_
