// A connection of the direct path (FORMAT.md), at the client.
#ifndef CLIENT_CHANNEL_DIRECT_CONNECTION_H_
#define CLIENT_CHANNEL_DIRECT_CONNECTION_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/channel/direct_tls.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/byte_stream.h"
#include "proto/wire/message/frame.h"

namespace routing_replay::client {

// The address of a server's direct path: either unix_socket, or host and port.
struct DirectAddress {
  std::string unix_socket;     // The name of an abstract socket.
  bool shared_memory = false;  // Asks the server for shared memory; if it has none left, the socket carries the bytes.
  std::string host;            // An IP address, without brackets.
  int port = 0;
};

// Whether an address is one of this machine, as this process sees it: a container's are its own, as its Unix sockets.
bool IsOfThisMachine(const std::string& host);

// Not thread-safe, except Break. All errors are UNAVAILABLE: the connection is broken then, and stays so.
class DirectConnection {
 public:
  // Waits for the server until `deadline`. `tls`: null: without. Errors of DirectTls::Look, too.
  static absl::StatusOr<std::unique_ptr<DirectConnection>> Dial(const DirectAddress& address, DirectTls* tls,
                                                                Clock::Time deadline);

  // What poll looks at, and the events after which more may be received and sent.
  int fd() const { return stream_->fd(); }
  uint32_t receive_events() const { return stream_->read_events(); }
  uint32_t send_events() const { return stream_->write_events(); }
  // Whether more may be received or sent without an event.
  bool IsReady() const { return stream_->HasBytes() || (sending() && stream_->HasRoom()); }
  const DirectAddress& address() const { return address_; }
  // "direct", "unix" or "shm".
  const char* transport() const;
  bool in_memory() const { return in_memory_; }
  // Whether another call may begin: nothing of the last one is left, and the server has not closed it.
  bool IsFresh();
  // From any thread: everything that waits, and what comes after, fails.
  void Break() { stream_->Break(); }
  // Reads the answer to a greeting that asked for shared memory, and continues over that memory or on the socket.
  absl::Status TakeMemory(Clock::Time deadline);

  // What is sent next, header and then payload, which must live until all is sent. Requires that nothing is being sent.
  void Put(FrameType type, std::string header, absl::Span<const absl::Span<const uint8_t>> payload) {
    writer_.Put(type, std::move(header), payload, /*in_parts=*/true);
  }
  bool sending() const { return !writer_.done(); }
  // Sends what can be sent without waiting; or all of it, if that goes before the deadline.
  absl::Status TrySend();
  absl::Status Send(Clock::Time deadline);
  // The next frame, if it is there as a whole, or comes before the deadline.
  absl::StatusOr<std::optional<ReceivedFrame>> TryReceive();
  absl::StatusOr<std::optional<ReceivedFrame>> Receive(Clock::Time deadline);
  // A frame that is done with: its memory is used again.
  void Recycle(ReceivedFrame frame) { reader_.Recycle(std::move(frame)); }

 private:
  DirectConnection(std::unique_ptr<ByteStream> stream, DirectAddress address);
  // Handles the result of a read. Returns whether the frame is complete.
  absl::StatusOr<bool> OnBytes(const absl::StatusOr<size_t>& bytes);
  absl::Status Broken(absl::string_view what, const absl::Status& why);

  std::unique_ptr<ByteStream> stream_;
  const DirectAddress address_;
  bool in_memory_ = false;
  FrameReader reader_;
  FrameWriter writer_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_DIRECT_CONNECTION_H_
