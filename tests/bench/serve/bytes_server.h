// A plain gRPC server of BytesService, without optimizations.
#ifndef TESTS_BENCH_SERVE_BYTES_SERVER_H_
#define TESTS_BENCH_SERVE_BYTES_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"

namespace routing_replay::bench {

// The answer to any command is the port of the server.
absl::StatusOr<std::unique_ptr<Role>> MakeBytesServer();

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_BYTES_SERVER_H_
