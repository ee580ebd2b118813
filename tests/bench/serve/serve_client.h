// The benchmark's only client: makes the transfer in each way, when told to.
#ifndef TESTS_BENCH_SERVE_SERVE_CLIENT_H_
#define TESTS_BENCH_SERVE_SERVE_CLIENT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"
#include "tests/bench/serve/transfer.h"

namespace routing_replay::bench {

// Commands: "open ENDPOINT HUB_PORT TLS_HUB_PORT GRPC_PORT TLS_ENDPOINT CACERT" connects every way. WAY is one of kWays
// (serve.cc), SIZE the number of a message size, NUMBER that of the transfer, ascending:
//   "prepare WAY SIZE NUMBER"                          before put, outside the clock
//   "put WAY SIZE NUMBER", "get WAY SIZE NUMBER"       answer with the seconds that they took
//   "small-put WAY NUMBER", "small-get WAY NUMBER"     answer with the median of the seconds of many small ones
//   (appender
//                                                      and tcp)
//   "poison", "check"                                  overwrite the bytes that get fills, compare them
absl::StatusOr<std::unique_ptr<Role>> MakeServeClient(const Transfer& transfer);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_SERVE_CLIENT_H_
