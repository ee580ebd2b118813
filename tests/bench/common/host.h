// The machine on which figures are measured.
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

// Moves this process, and the processes that it starts afterwards, into a network namespace with only a loopback
// interface and reno congestion control. (With BBR, which some hosts use by default, loopback is a quarter slower.)
// Call it before any thread is started. FAILED_PRECONDITION, with nothing changed, if the process lacks the right.
absl::Status EnterOwnNetwork();

Host DescribeHost();

// Bytes that have passed the loopback interface, including the headers of all layers. Only meaningful after
// EnterOwnNetwork.
int64_t LoopbackBytes();

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_HOST_H_
