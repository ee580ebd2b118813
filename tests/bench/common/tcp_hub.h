// The floor of what a service does: plain TCP, bytes into a hub once and out of it once, nothing asked and nothing
// looked at. With TLS it is a loop over OpenSSL that copies, and nothing else.
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

// One process that serves every connection on a thread of its own. `stored_sizes` are the bytes of what is put, by
// index; `ready` is what can be got, by index. Any command is answered with the hub's port.
absl::StatusOr<std::unique_ptr<Role>> MakeTcpHub(const std::vector<size_t>& stored_sizes,
                                                 std::vector<std::vector<uint8_t>> ready, TlsFiles tls = {});

// One connection to the hub. Not thread-safe.
class HubConnection {
 public:
  static absl::StatusOr<HubConnection> Connect(int port, bool tls = false);

  // `bytes` have the size that is stored under this index.
  absl::Status Put(int32_t index, absl::Span<const uint8_t> bytes);
  // Returns when the hub has taken everything.
  absl::Status Sync();
  // What is ready under this index; `out` has its size.
  absl::Status Get(int32_t index, absl::Span<uint8_t> out);
  // What was put under `count` indexes from `first` on, one after the other; `out` has their size.
  absl::Status GetStored(int32_t first, int32_t count, absl::Span<uint8_t> out);

 private:
  explicit HubConnection(TcpSocket socket) : socket_(std::move(socket)) {}
  TcpSocket socket_;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_TCP_HUB_H_
