// A connection of the direct path with TLS.
#ifndef PROTO_WIRE_TLS_TLS_STREAM_H_
#define PROTO_WIRE_TLS_TLS_STREAM_H_

#include <memory>
#include <string>

#include "proto/wire/message/byte_stream.h"
#include "proto/wire/security.h"
#include "proto/wire/tls/tls_context.h"

namespace routing_replay {
inline namespace wire {

// The handshake is part of the first reads and writes: before it is done and both ends are content, no byte comes or
// goes.
class TlsStream final : public ByteStream {
 public:
  // Take the socket, which does not block from here on.
  static std::unique_ptr<TlsStream> Accept(const TlsContext& context, int fd);
  // The server's certificate must have that name or address.
  static std::unique_ptr<TlsStream> Connect(const TlsContext& context, int fd, const std::string& server_name);
  ~TlsStream() override;

  absl::StatusOr<size_t> Read(absl::Span<const iovec> space) override;
  absl::StatusOr<size_t> Write(absl::Span<const iovec> bytes) override;
  int fd() const override { return fd_; }
  uint32_t read_events() const override { return read_events_; }
  uint32_t write_events() const override { return write_events_; }
  bool HasBytes() const override { return !drained_ && SSL_has_pending(ssl_.get()) == 1; }
  PeerCertificate peer_certificate() const override;

 private:
  TlsStream(const TlsContext& context, int fd);
  // What a Read or Write returns that had moved so many bytes when OpenSSL gave `result`; it goes on after `events`.
  absl::StatusOr<size_t> Stop(size_t moved, int result, uint32_t& events);

  const int fd_;
  const std::unique_ptr<SSL, OpenSslFree<SSL_free>> ssl_;
  uint32_t read_events_ = POLLIN, write_events_ = POLLOUT;
  bool drained_ = false;  // The last Read met no more.
  absl::Status over_;
};

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_TLS_TLS_STREAM_H_
