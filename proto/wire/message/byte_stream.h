// A byte stream: a plain socket, TLS, or shared memory. It carries the frames of the direct path, or Redis's commands.
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

// One end of a connection. The destructor closes it. Not thread-safe, except Break. Errors are UNAVAILABLE with the
// reason in the message; those of RingStream may be INVALID_ARGUMENT. After an error, only destroy the connection.
class ByteStream {
 public:
  ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  // Non-blocking. Read fills the pieces, Write sends them, in order; both return the number of bytes moved. 0: none can
  // be moved now; wait for an event of fd() and retry. After a Write that returned 0, the next must pass the same
  // bytes.
  virtual absl::StatusOr<size_t> Read(absl::Span<const iovec> space) = 0;
  virtual absl::StatusOr<size_t> Write(absl::Span<const iovec> bytes) = 0;
  // Waits until bytes arrive; implementations may wait until `space` is full. Returns 0 if the deadline passed without
  // a byte. It may also return 0 earlier: then call it again.
  virtual absl::StatusOr<size_t> ReadBy(absl::Span<const iovec> space, Clock::Time deadline);

  // The descriptor for poll and epoll, and the events after which a Read or Write that returned 0 should be retried.
  virtual int fd() const = 0;
  virtual uint32_t read_events() const { return POLLIN; }
  virtual uint32_t write_events() const { return POLLOUT; }
  // True if Read (HasBytes) or Write (HasRoom) may succeed now although fd() shows no event. If false, fd() shows the
  // next event. Call it before each wait for fd(), unless the wait is only for the operation that returned 0 last.
  virtual bool HasBytes() const { return false; }
  virtual bool HasRoom() const { return false; }
  // The names in the certificate that the peer presented, for log lines only: they grant no access. Empty if the peer
  // presented none.
  virtual std::string peer_names() const { return ""; }
  // Waits for the events until the deadline, also if signals arrive.
  void Wait(uint32_t events, Clock::Time deadline) const;

  // Tells the other end that nothing more will be written.
  virtual void EndWrites();
  // May be called from any thread. Waiting calls end. Later calls fail, or first move bytes that need no system call.
  virtual void Break();
};

// A connected socket. A small Read also receives the bytes that have arrived after it and keeps them for later, because
// a system call costs as much as a small message.
class SocketStream final : public ByteStream {
 public:
  // Takes ownership of `fd`. ReadBy requires a blocking socket.
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
  std::vector<uint8_t> ahead_;  // Bytes received before a Read asked for them.
  size_t next_ = 0;             // Index in ahead_ of the next byte to return.
  int patience_ms_ = 0;         // Receive timeout set on the socket; 0: not set.
};

// Sets the options for a TCP connection of the direct path. Bytes are sent without delay (TCP_NODELAY). On an
// idle connection, a peer that disappeared is noticed within 40 s. If both ends are on one machine, a congestion
// control that suits loopback replaces the system's default, which may be made for long distances.
void PrepareTcp(int fd);
// For a Unix socket: enlarges the send buffer, which by default holds only a tenth of a message of 2 MiB.
void PrepareUnix(int fd);

// Milliseconds until the deadline, rounded up; 0 if it has passed.
int MsUntil(Clock::Time deadline);
// Waits for these events of poll(2) until the deadline, also if signals arrive. Returns the events that came; 0: none.
short PollBy(int fd, short events, Clock::Time deadline);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_BYTE_STREAM_H_
