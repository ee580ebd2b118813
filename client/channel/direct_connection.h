// A connection of the direct path (FORMAT.md), at the client.
#ifndef CLIENT_CHANNEL_DIRECT_CONNECTION_H_
#define CLIENT_CHANNEL_DIRECT_CONNECTION_H_

#include <sys/uio.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/frame.h"

namespace routing_replay::client {

// Where a server's direct path is. Of the two one is given.
struct DirectAddress {
  std::string unix_socket;  // The name of an abstract one.
  std::string host;
  int port = 0;
};

// Not thread-safe, but for Break. All errors are UNAVAILABLE: the connection is broken then, and stays so.
class DirectConnection {
 public:
  // `deadline` bounds the wait for the server, but not for a name's addresses.
  static absl::StatusOr<std::unique_ptr<DirectConnection>> Dial(const DirectAddress& address, Clock::Time deadline);
  ~DirectConnection();
  DirectConnection(const DirectConnection&) = delete;
  DirectConnection& operator=(const DirectConnection&) = delete;

  int fd() const { return fd_; }
  // Whether another call may begin: nothing of the last one is left, and the server has not closed it.
  bool IsFresh() const;
  // From any thread: everything that waits, and what comes after, fails.
  void Break();

  // What is sent next, header and then payload, which must live until all is sent. Requires that nothing is being sent.
  void Put(FrameType type, std::string header, absl::Span<const absl::Span<const uint8_t>> payload);
  bool sending() const { return next_ < left_.size(); }
  // Sends what can be sent without waiting; or all of it.
  absl::Status TrySend() { return SendSome(/*wait=*/false); }
  absl::Status Send() { return SendSome(/*wait=*/true); }
  // The next frame, if it is there as a whole, or comes before the deadline.
  absl::StatusOr<std::optional<ReceivedFrame>> TryReceive() { return ReceiveSome(/*wait=*/false); }
  absl::StatusOr<std::optional<ReceivedFrame>> Receive(Clock::Time deadline);
  // A frame that is done with: its memory is used again.
  void Recycle(ReceivedFrame frame) { reader_.Recycle(std::move(frame)); }

 private:
  explicit DirectConnection(int fd);
  absl::Status SendSome(bool wait);
  absl::StatusOr<std::optional<ReceivedFrame>> ReceiveSome(bool wait);
  absl::Status Broken(const char* what);

  const int fd_;
  FrameReader reader_;
  std::string frame_, header_;
  std::vector<iovec> left_;
  size_t next_ = 0;  // Of left_.
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_DIRECT_CONNECTION_H_
