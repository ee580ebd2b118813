// What the frames of the direct path travel on: a socket, or what does more than a socket.
#ifndef PROTO_WIRE_MESSAGE_BYTE_STREAM_H_
#define PROTO_WIRE_MESSAGE_BYTE_STREAM_H_

#include <poll.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"

namespace routing_replay {
inline namespace wire {

// What an end has shown of itself: PEM, and names for people, which allow nothing. Empty: nothing was shown.
struct PeerCertificate {
  std::string certificate, chain, names;
};

// One end of a connection, which ends with the object. Not thread-safe, but for Break. All errors are UNAVAILABLE,
// saying why: the connection is over then, and whoever is told of an error does not go on.
class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  // How many bytes came or went, of the first pieces; 0: none now, and perhaps some after an event of fd(). Neither
  // waits. A Write that gave 0 is followed by one of the same bytes.
  virtual absl::StatusOr<size_t> Read(absl::Span<const iovec> space) = 0;
  virtual absl::StatusOr<size_t> Write(absl::Span<const iovec> bytes) = 0;
  // Waits for bytes, and where it can for as many as there is space for. 0: none came by the deadline; or it is to be
  // asked again.
  virtual absl::StatusOr<size_t> ReadBy(absl::Span<const iovec> space, Clock::Time deadline);

  // What poll and epoll look at, and the events after which Read and Write may go on, as they ended last.
  virtual int fd() const = 0;
  virtual uint32_t read_events() const { return POLLIN; }
  virtual uint32_t write_events() const { return POLLOUT; }
  // Whether Read, or Write, may go on by now though fd() does not tell. From false on it tells: it is to be asked
  // before waiting for fd(), unless only the one that gave 0 last is waited for.
  virtual bool HasBytes() const { return false; }
  virtual bool HasRoom() const { return false; }
  virtual PeerCertificate peer_certificate() const { return {}; }
  // Waits for the events until the deadline, if not interrupted.
  void Wait(uint32_t events, Clock::Time deadline) const;

  // The other end is to hear that nothing more is written.
  virtual void EndWrites();
  // From any thread: everything that waits, and what comes after, fails.
  virtual void Break();
};

// Of a socket that is connected. A small read takes what has come behind it as well: a call to the system costs as much
// as a small message.
class SocketStream final : public ByteStream {
 public:
  // Takes it. For ReadBy it must be one that blocks.
  explicit SocketStream(int fd) : fd_(fd) {}
  ~SocketStream() override;

  absl::StatusOr<size_t> Read(absl::Span<const iovec> space) override;
  absl::StatusOr<size_t> Write(absl::Span<const iovec> bytes) override;
  absl::StatusOr<size_t> ReadBy(absl::Span<const iovec> space, Clock::Time deadline) override;
  int fd() const override { return fd_; }
  bool HasBytes() const override { return next_ < ahead_.size(); }

 private:
  absl::StatusOr<size_t> Receive(absl::Span<const iovec> space, int flags);

  const int fd_;
  std::vector<uint8_t> ahead_;  // Has come, …
  size_t next_ = 0;             // … and was not read from here on.
  int patience_ms_ = 0;         // Of the socket; 0: not set.
};

// In ms, up; 0: it is over.
int MsUntil(Clock::Time deadline);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_BYTE_STREAM_H_
