// One Append call on a connection of the direct path, that is, without gRPC.
#ifndef CLIENT_APPENDER_DIRECT_APPEND_STREAM_H_
#define CLIENT_APPENDER_DIRECT_APPEND_STREAM_H_

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "client/appender/append_session.h"
#include "client/channel/direct_connection.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// Callers hold `mutex` in CanWrite, Write and MustWake. Wait locks `mutex` itself and unlocks it while it polls, so
// that other threads can write while one thread waits.
class DirectAppendStream {
 public:
  struct Event {
    bool woken = false;
    std::optional<ReceivedFrame> message;
    std::optional<absl::Status> end;
  };

  DirectAppendStream(std::unique_ptr<DirectConnection> connection, Mutex& mutex)
      : mutex_(mutex), connection_(std::move(connection)) {}

  bool CanWrite() const { return broken_.ok() && !connection_->sending(); }
  // Requires CanWrite().
  void Write(AppendQueue::Message message);
  // For a thread that has called Write while another thread is in Wait. Returns true if the writer must set `wake`:
  // either a part of the message has not been sent yet, or Write consumed the event that announces received bytes.
  bool MustWake() const { return !CanWrite() || connection_->IsReady(); }
  void Cancel() { connection_->Break(); }
  // Sends and receives until one of these happens: a message or the end of the stream arrives; the rest of a partly
  // sent message has been sent; `wake` (an eventfd, which Wait then clears) is set; the time `until` is reached.
  Event Wait(int wake, Clock::Time until);
  std::unique_ptr<DirectConnection> TakeConnection() { return std::move(connection_); }

 private:
  // Returns what has arrived.
  Event Receive();

  Mutex& mutex_;
  std::unique_ptr<DirectConnection> connection_;
  AppendQueue::Message message_;  // The message that is being sent.
  absl::Status broken_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_DIRECT_APPEND_STREAM_H_
