// Plain TCP on the loopback interface: the floor, that is, the least time that a transport over TCP can take.
#ifndef TESTS_BENCH_COMMON_TCP_SOCKET_H_
#define TESTS_BENCH_COMMON_TCP_SOCKET_H_

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay::bench {

// PEM files of a server. If empty, no TLS.
struct TlsFiles {
  std::string certificate, key;
};

// A blocking socket without Nagle's delay. Move-only.
class TcpSocket {
 public:
  TcpSocket() = default;
  TcpSocket(TcpSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), tls_(std::move(other.tls_)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept;
  ~TcpSocket();

  static absl::StatusOr<TcpSocket> Connect(int port);
  bool open() const { return fd_ >= 0; }
  // Performs a TLS handshake: as a server if there are files, otherwise as a client that verifies no certificate. After
  // it, Send and Receive are SSL_write and SSL_read.
  absl::Status StartTls(const TlsFiles& files);

  absl::Status Send(absl::Span<const uint8_t> bytes);
  // Sends the pieces one after the other with one gathering system call. Not with TLS.
  absl::Status SendAll(absl::Span<const absl::Span<const uint8_t>> pieces);
  // Fills `bytes`, reading at most `piece` bytes per system call. UNAVAILABLE if the peer closes.
  absl::Status Receive(absl::Span<uint8_t> bytes, size_t piece = size_t{1} << 20);

 private:
  friend class TcpListener;
  explicit TcpSocket(int fd) : fd_(fd) {}
  int fd_ = -1;
  std::unique_ptr<SSL, decltype(&SSL_free)> tls_{nullptr, SSL_free};
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
