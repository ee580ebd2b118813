// A connection of the direct path, or to Redis, over TLS.
#ifndef PROTO_WIRE_TLS_TLS_STREAM_H_
#define PROTO_WIRE_TLS_TLS_STREAM_H_

#include <memory>
#include <string>

#include "proto/wire/message/byte_stream.h"
#include "proto/wire/security.h"
#include "proto/wire/tls/tls_context.h"

namespace routing_replay {
inline namespace wire {

// The first reads and writes perform the handshake. No payload byte is read or written before it has succeeded.
class TlsStream final : public ByteStream {
 public:
  // Accept and Connect take ownership of the socket `fd` and make it non-blocking.
  static std::unique_ptr<TlsStream> Accept(const TlsContext& context, int fd);
  // The server's certificate must contain `server_name`, as a name or an address.
  static std::unique_ptr<TlsStream> Connect(const TlsContext& context, int fd, const std::string& server_name);
  ~TlsStream() override;

  absl::StatusOr<size_t> Read(absl::Span<const iovec> space) override;
  absl::StatusOr<size_t> Write(absl::Span<const iovec> bytes) override;
  int fd() const override { return fd_; }
  uint32_t read_events() const override { return read_events_; }
  uint32_t write_events() const override { return write_events_; }
  bool HasBytes() const override { return !drained_ && SSL_has_pending(ssl_.get()) == 1; }
  std::string peer_names() const override;

 private:
  TlsStream(const TlsContext& context, int fd);
  // Computes what Read or Write returns after it has moved `moved` bytes and OpenSSL's last call returned `result`. If
  // that call must be repeated later, `events` becomes the poll events to wait for.
  absl::StatusOr<size_t> Stop(size_t moved, int result, uint32_t& events);

  const int fd_;
  const std::unique_ptr<SSL, OpenSslFree<SSL_free>> ssl_;
  uint32_t read_events_ = POLLIN, write_events_ = POLLOUT;
  bool drained_ = false;  // The last Read found no more bytes.
  absl::Status over_;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_TLS_TLS_STREAM_H_
