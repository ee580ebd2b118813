// Where the figures come from.
#ifndef TESTS_BENCH_COMMON_HOST_H_
#define TESTS_BENCH_COMMON_HOST_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace routing_replay::bench {

struct Host {
  std::string cpu;
  int cores = 0;
  std::string kernel;
  std::string congestion_control;
  bool own_network = false;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Host, cpu, cores, kernel, congestion_control, own_network)

// Moves this process, and all that it starts from now on, into a network namespace that has nothing but a loopback
// interface, with reno congestion control: BBR, a host's default at times, takes a quarter off loopback. Call before
// any thread is started. FAILED_PRECONDITION where the process may not; nothing has changed then.
absl::Status EnterOwnNetwork();

Host DescribeHost();

// Bytes that have passed the loopback interface, headers of all layers included; only meaningful in a network of one's
// own.
int64_t LoopbackBytes();

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_HOST_H_
