// Plain TCP on the loopback interface: what everything else is measured against.
#ifndef TESTS_BENCH_COMMON_TCP_SOCKET_H_
#define TESTS_BENCH_COMMON_TCP_SOCKET_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay::bench {

// A blocking socket without Nagle's delay. Move-only.
class TcpSocket {
 public:
  TcpSocket() = default;
  TcpSocket(TcpSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept;
  ~TcpSocket();

  static absl::StatusOr<TcpSocket> Connect(int port);
  bool open() const { return fd_ >= 0; }

  absl::Status Send(absl::Span<const uint8_t> bytes);
  // The pieces one after the other, gathered by the kernel.
  absl::Status SendAll(absl::Span<const absl::Span<const uint8_t>> pieces);
  // Fills `bytes`, at most `piece` bytes per system call. UNAVAILABLE if the other end closes.
  absl::Status Receive(absl::Span<uint8_t> bytes, size_t piece = size_t{1} << 20);

 private:
  friend class TcpListener;
  explicit TcpSocket(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// Listens on a free port.
class TcpListener {
 public:
  static absl::StatusOr<TcpListener> Listen();
  TcpListener(TcpListener&&) = default;

  int port() const { return port_; }
  absl::StatusOr<TcpSocket> Accept();

 private:
  TcpListener() = default;
  TcpSocket socket_;
  int port_ = 0;
};

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_COMMON_TCP_SOCKET_H_
