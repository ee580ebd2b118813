// The messages of one Read call, received ahead of the one who takes them.
#ifndef CLIENT_READER_READ_STREAM_H_
#define CLIENT_READER_READ_STREAM_H_

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "client/cancellation.h"
#include "client/channel/link.h"
#include "proto/transport/transport.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// Receives on a thread of its own, so that the next messages come over the network while the present one is worked on.
// At most kWindow messages wait; then the server is not read from. Next is for one thread.
class ReadStream {
 public:
  static constexpr size_t kWindow = 2;

  // Starts the call with `request`, the bytes of a ReadRequest.
  ReadStream(const ServerConnection& connection, std::string request, Clock::Time deadline);
  // Cancels what is still open.
  ~ReadStream();

  // The next message; nothing at the good end of the stream; else the call's error. Waits at most until the deadline.
  absl::StatusOr<std::optional<ReceivedBytes>> Next();

 private:
  enum Tag : intptr_t { kStarted = 1, kSent, kReceived, kFinished };

  void Receive();
  void OnEvent(Tag tag, bool ok);
  // Asks for the next message once there is room for it.
  void ReadNext();

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer incoming_;
  grpc::Status grpc_status_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<grpc::ByteBuffer> received_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::thread receiver_;
  const OnCancel on_cancel_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_READER_READ_STREAM_H_
