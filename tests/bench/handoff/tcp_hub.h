// The floor of the hand-off: plain TCP, all rows into a hub once, each rank its ready bytes out once.
#ifndef TESTS_BENCH_HANDOFF_TCP_HUB_H_
#define TESTS_BENCH_HANDOFF_TCP_HUB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tests/bench/common/tcp_socket.h"
#include "tests/bench/common/team.h"
#include "tests/bench/handoff/scenario.h"

namespace routing_replay::bench {

// One process that serves every connection on a thread of its own. Answers "hello" with its port and the digests of the
// arrays that the ranks must end up with, in the order of ranks.
absl::StatusOr<std::unique_ptr<Role>> MakeTcpHub(const HandoffScenario& scenario);

// One connection to the hub. Not thread-safe.
class HubConnection {
 public:
  static absl::StatusOr<HubConnection> Connect(int port);

  absl::Status Put(int32_t sample, absl::Span<const uint8_t> bytes);
  // Returns when the hub has taken everything.
  absl::Status Sync();
  // The ready array of a rank, which has the size of `out`.
  absl::Status Get(int32_t rank, absl::Span<uint8_t> out);

 private:
  explicit HubConnection(TcpSocket socket) : socket_(std::move(socket)) {}
  TcpSocket socket_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_TCP_HUB_H_
