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
#include "client/channel/client_security.h"
#include "client/channel/endpoint.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/byte_stream.h"
#include "proto/wire/message/frame.h"
#include "proto/wire/mutex.h"
#include "proto/wire/tls/tls_context.h"

namespace routing_replay::client {

// The address of a server's direct path: either unix_socket, or host and port.
struct DirectAddress {
  std::string unix_socket;     // The name of an abstract socket.
  bool shared_memory = false;  // Asks the server for shared memory; if it has none left, the socket carries the bytes.
  std::string host;            // An IP address, without brackets.
  int port = 0;
};

// Returns true if `host` is an address of this machine, as this process sees it. A container has its own addresses,
// just as it has its own Unix sockets.
bool IsOfThisMachine(const std::string& host);

// TLS for the direct path to one server, with the same settings as the gRPC channel. Thread-safe.
class DirectTls {
 public:
  // `target`: the target of the channel, which must be encrypted.
  DirectTls(std::shared_ptr<const ClientSecurity> security, const ServerTarget& target)
      : security_(std::move(security)), judged_(target.judged()), host_(HostOf(target.target)) {}

  // The TLS context and the expected name for a new connection.
  struct Ends {
    TlsContext own;
    std::string server_name;
  };
  // Reads the files now. Fails with the errors of ClientSecurity::KeysFor and of ClientTlsContext.
  absl::StatusOr<Ends> Look();

 private:
  const std::shared_ptr<const ClientSecurity> security_;
  const std::string judged_, host_;
  Mutex mutex_;
  ChannelKeys keys_ ABSL_GUARDED_BY(mutex_);
  TlsContext context_ ABSL_GUARDED_BY(mutex_);  // Made from keys_; null: not made yet.
};

// Not thread-safe, except Break. Every error is UNAVAILABLE, and means that the connection is broken for good.
class DirectConnection {
 public:
  // Connects to the server, and waits for it until `deadline` at most. `tls` is null for a connection without TLS. Can
  // also fail with the errors of DirectTls::Look.
  static absl::StatusOr<std::unique_ptr<DirectConnection>> Dial(const DirectAddress& address, DirectTls* tls,
                                                                Clock::Time deadline);

  // The descriptor to poll, and the events after which more can be received or sent.
  int fd() const { return stream_->fd(); }
  uint32_t receive_events() const { return stream_->read_events(); }
  uint32_t send_events() const { return stream_->write_events(); }
  // Returns true if more can be received or sent at once, without waiting for an event.
  bool IsReady() const { return stream_->HasBytes() || (sending() && stream_->HasRoom()); }
  const DirectAddress& address() const { return address_; }
  // "direct", "unix" or "shm".
  const char* transport() const;
  bool in_memory() const { return in_memory_; }
  // Returns true if another call may begin on this connection: no bytes of the last call are left, and the server has
  // not closed the connection.
  bool IsFresh();
  // May be called from any thread. Whoever waits for the connection gets an error, and so does every later call.
  void Break() { stream_->Break(); }
  // Reads the answer to a greeting that asked for shared memory, and uses that memory if the answer offers it.
  absl::Status TakeMemory(Clock::Time deadline);

  // Sets the frame to send next: its header, then the payload, whose memory must live until the frame is sent. See
  // FrameWriter::Put.
  void Put(FrameType type, std::string header, absl::Span<const absl::Span<const uint8_t>> payload) {
    writer_.Put(type, std::move(header), payload, /*in_parts=*/true);
  }
  bool sending() const { return !writer_.done(); }
  // TrySend sends what can be sent without waiting. Send waits until the frame is sent, at most until the deadline.
  absl::Status TrySend();
  absl::Status Send(Clock::Time deadline);
  // TryReceive returns the next frame if all of it has arrived. Receive waits for it, at most until the deadline.
  absl::StatusOr<std::optional<ReceivedFrame>> TryReceive();
  absl::StatusOr<std::optional<ReceivedFrame>> Receive(Clock::Time deadline);
  // Takes back a frame that is no longer needed, to use its memory again.
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
