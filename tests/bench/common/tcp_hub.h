// The floor of a service: plain TCP into a hub and out of it, each byte once, without requests or checks. With TLS it
// is a loop over OpenSSL that only copies.
#ifndef TESTS_BENCH_COMMON_TCP_HUB_H_
#define TESTS_BENCH_COMMON_TCP_HUB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/bench/common/tcp_socket.h"
#include "tests/bench/common/team.h"

namespace routing_replay::bench {

// One process that serves each connection on its own thread. Clients put `stored_sizes[i]` bytes under index i, and get
// `ready[i]`. The answer to any command is the hub's port.
absl::StatusOr<std::unique_ptr<Role>> MakeTcpHub(const std::vector<size_t>& stored_sizes,
                                                 std::vector<std::vector<uint8_t>> ready, TlsFiles tls = {});

// One connection to the hub. Not thread-safe.
class HubConnection {
 public:
  static absl::StatusOr<HubConnection> Connect(int port, bool tls = false);

  // `bytes` must have the size that is stored under this index.
  absl::Status Put(int32_t index, absl::Span<const uint8_t> bytes);
  // Returns when the hub has received everything.
  absl::Status Sync();
  // Gets `ready[index]`; `out` must have its size.
  absl::Status Get(int32_t index, absl::Span<uint8_t> out);
  // Gets what was put under the `count` indexes from `first` on, concatenated; `out` must have the total size.
  absl::Status GetStored(int32_t first, int32_t count, absl::Span<uint8_t> out);

 private:
  explicit HubConnection(TcpSocket socket) : socket_(std::move(socket)) {}
  TcpSocket socket_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_TCP_HUB_H_
