#include "client/appender/append_stream.h"

#include <utility>

#include "proto/wire/message/grpc_bytes.h"

namespace routing_replay::client {
namespace {

constexpr char kMethod[] = "/routing_replay.v1.RoutingReplay/Append";

}  // namespace

AppendStream::AppendStream(const ServerConnection& connection, grpc::CompletionQueue& queue)
    : stub_(connection.channel) {
  connection.Authorize(context_);
  call_ = stub_.PrepareCall(&context_, kMethod, &queue);
  call_->StartCall(QueueTag(kStarted));
}

AppendStream::Event AppendStream::OnEvent(Tag tag, bool ok) {
  Event event;
  switch (tag) {
    case kStarted:
      break;
    case kWritten:
      writing_ = false;
      broken_ = broken_ || !ok;
      break;
    case kReceived:
      receiving_ = false;
      if (ok) event.message = std::exchange(incoming_, {});
      break;
    case kEnded:
      event.end = FromGrpcStatus(status_);
      return event;
  }
  // Messages that the server sent before the call broke must still be received; the call cannot finish before.
  if (tag != kWritten && ok) {
    Receive();
  } else if (!receiving_ && !writing_) {
    call_->Finish(&status_, QueueTag(kEnded));
  }
  return event;
}

void AppendStream::Receive() {
  receiving_ = true;
  call_->Read(&incoming_, QueueTag(kReceived));
}

void AppendStream::Write(AppendQueue::Message message) {
  ByteBufferBuilder builder;
  builder.Add(std::move(message.header));
  for (const absl::Span<const uint8_t> part : message.payload) builder.Add(part, message.owner);
  writing_ = true;
  call_->Write(builder.Build(), QueueTag(kWritten));
}

}  // namespace routing_replay::client
