// The server of BytesService, written as anybody would write it.
#ifndef TESTS_BENCH_SERVE_BYTES_SERVER_H_
#define TESTS_BENCH_SERVE_BYTES_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/bench/common/team.h"

namespace routing_replay::bench {

// Any command is answered with the port it listens on.
absl::StatusOr<std::unique_ptr<Role>> MakeBytesServer();

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_SERVE_BYTES_SERVER_H_
