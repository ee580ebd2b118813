#include "client/reader/reader.h"

#include <grpcpp/completion_queue.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "client/call/cancellation.h"
#include "client/call/log.h"
#include "client/call/retry.h"
#include "client/channel/link.h"
#include "client/reader/read_checker.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/grpc_bytes.h"
#include "proto/wire/message/read_message.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {

namespace {

constexpr char kMethod[] = "/routing_replay.v1.RoutingReplay/Read";

// Receives on its own thread, so that the next messages arrive while the current one is processed. When kWindow
// messages wait, only one more is received. Next may be called by one thread.
class ReadStream {
 public:
  static constexpr size_t kWindow = 2;

  // Starts the call with `request`, the bytes of a ReadRequest.
  ReadStream(const ServerConnection& connection, std::string request, Clock::Time deadline)
      : request_(std::move(request)),
        stream_(connection, kMethod, queue_, deadline),
        on_cancel_([this] { stream_.Cancel(); }),
        receiver_([this] { Receive(); }) {}
  // Cancels the call if it is still open.
  ~ReadStream();

  // Returns the next message, nothing at the normal end of the stream, or the call's error. Waits until the deadline at
  // most.
  absl::StatusOr<std::optional<ReceivedBytes>> Next();

 private:
  void Receive();

  Mutex mutex_;
  CondVar changed_;
  std::deque<grpc::ByteBuffer> received_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  std::string request_;
  grpc::CompletionQueue queue_;
  RawStream stream_;
  const OnCancel on_cancel_;
  std::thread receiver_;
};

ReadStream::~ReadStream() {
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    changed_.NotifyAll();
  }
  stream_.Cancel();
  receiver_.join();
}

void ReadStream::Receive() {
  bool sent = false;
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    RawStream::Event event = stream_.OnEvent(tag, ok);
    if (!sent && stream_.CanWrite()) {
      stream_.Write(std::move(request_), {}, nullptr, /*last=*/true);
      sent = true;
    }
    if (event.end) queue_.Shutdown();
    MutexLock lock(mutex_);
    end_ = std::move(event.end);
    if (event.message) received_.push_back(*std::move(event.message));
    changed_.NotifyAll();
    while (received_.size() >= kWindow && !cancelled_ && !end_) changed_.Wait(mutex_);
  }
}

absl::StatusOr<std::optional<ReceivedBytes>> ReadStream::Next() {
  grpc::ByteBuffer message;
  {
    MutexLock lock(mutex_);
    while (received_.empty() && !end_) changed_.Wait(mutex_);
    if (received_.empty()) {
      if (!end_->ok()) return *end_;
      return std::optional<ReceivedBytes>();
    }
    message = std::move(received_.front());
    received_.pop_front();
    changed_.NotifyAll();
  }
  RR_ASSIGN_OR_RETURN(ReceivedBytes bytes, ReceivedBytes::From(message));
  return std::optional<ReceivedBytes>(std::move(bytes));
}

// The result of reading the missing pieces from one server.
struct Answer {
  absl::Status status;
  bool broke = false;       // The server failed, or rejected a token that was replaced meanwhile: retry.
  bool brought = false;     // Part of the answer arrived.
  bool ended_well = false;  // The RPC ended well, even if its answer was rejected here.
};

// Returns the next message of a read over the direct path, with this deadline; nothing at the normal end.
absl::StatusOr<std::optional<ReceivedFrame>> NextFrame(DirectConnection& direct, Clock::Time deadline) {
  auto frame = direct.Receive(deadline);
  RR_RETURN_IF_ERROR(CheckCall());
  if (!frame.ok()) return frame.status();
  if (!frame->has_value()) return absl::DeadlineExceededError("the read did not end in time");
  if ((*frame)->type() == FrameType::kMessage) return frame;
  const absl::string_view status = (*frame)->header();
  if (!status.empty()) return DecodeStreamStatus(status);
  return std::optional<ReceivedFrame>();
}

// Reads over the direct path. Needs no second thread: while a message is processed, the kernel receives the next bytes.
Answer AskDirect(Link& link, const ServerConnection& connection, DirectConnection& direct, ReadChecker& read,
                 Clock::Time deadline) {
  const OnCancel on_cancel([&] { direct.Break(); });
  direct.Put(FrameType::kMessage, EncodeReadRequest(*read.part()), {});
  const absl::Status sent = direct.Send(deadline);
  for (Answer answer;; answer.brought = true) {
    auto frame = sent.ok() ? NextFrame(direct, deadline) : sent;
    answer.status = link.OnEnd(connection, frame.status());
    answer.broke = absl::IsUnavailable(answer.status);
    answer.ended_well = frame.ok() && !frame->has_value();
    if (frame.ok()) answer.status = answer.ended_well ? read.OnEnd() : read.OnBytes((*frame)->chain());
    if (answer.ended_well || !answer.status.ok()) return answer;
    direct.Recycle(**std::move(frame));
  }
}

Answer AskOnce(Link& link, ReadChecker& read, Clock::Time deadline) {
  const auto connection = link.Connect();
  if (!connection.ok()) return {.status = connection.status()};
  if (auto direct = link.BeginDirect(*connection, "Read", deadline)) {
    const Answer answer = AskDirect(link, *connection, *direct, read, deadline);
    const absl::Status end = answer.ended_well ? absl::OkStatus() : answer.status;
    if (answer.ended_well || answer.broke) link.EndDirect(*connection, std::move(direct), end);
    return answer;
  }
  ReadStream stream(*connection, EncodeReadRequest(*read.part()), deadline);
  for (Answer answer;; answer.brought = true) {
    const auto bytes = stream.Next();
    answer.status = link.OnEnd(*connection, bytes.status());
    answer.broke = absl::IsUnavailable(answer.status);
    const bool more = bytes.ok() && bytes->has_value();
    if (bytes.ok()) answer.status = more ? read.OnBytes((*bytes)->chain()) : read.OnEnd();
    if (!more || !answer.status.ok()) return answer;
  }
}

}  // namespace

absl::Status ReadInto(Link& link, const Geometry& geometry, const ReadRequest& request, ReadSink& sink,
                      Clock::Time deadline, std::chrono::milliseconds patience) {
  RR_ASSIGN_OR_RETURN(auto read, ReadChecker::Create(geometry, request, sink));
  const auto from_now = [&] { return RetrySchedule(std::min(deadline, DeadlineAfter(Clock::Real().Now(), patience))); };
  RetrySchedule schedule = from_now();
  bool told = false;
  while (read->part() != nullptr) {
    const Answer answer = AskOnce(link, *read, deadline);
    if (answer.status.ok()) continue;
    if (!answer.broke) return answer.status;
    // If the caller cancelled the call, the server is not at fault.
    RR_RETURN_IF_ERROR(CheckCall());
    if (answer.brought) schedule = from_now();
    const auto wait = schedule.WaitAfter(answer.status, Clock::Real().Now());
    if (!wait) return answer.status;
    if (!std::exchange(told, true)) Log(absl::StrCat("a read is waiting for its server: ", answer.status.message()));
    read->OnBreak();
    SleepInCall(*wait);
    RR_RETURN_IF_ERROR(CheckCall());
  }
  return absl::OkStatus();
}

}  // namespace routing_replay::client
