#include "client/reader/read_stream.h"

#include <utility>

#include "client/channel/channel.h"
#include "proto/transport/transport.h"

namespace routing_replay::client {
namespace {

constexpr char kMethod[] = "/routing_replay.v1.RoutingReplay/Read";

}  // namespace

ReadStream::ReadStream(const ServerConnection& connection, std::string request, Clock::Time deadline)
    : stub_(connection.channel), on_cancel_([this] { context_.TryCancel(); }) {
  connection.Authorize(context_);
  context_.set_deadline(GrpcDeadline(deadline));
  ByteBufferBuilder builder;
  builder.Add(std::move(request));
  request_ = builder.Build();
  call_ = stub_.PrepareCall(&context_, kMethod, &queue_);
  call_->StartCall(QueueTag(kStarted));
  receiver_ = std::thread([this] { Receive(); });
}

ReadStream::~ReadStream() {
  {
    MutexLock lock(mutex_);
    cancelled_ = true;
    changed_.NotifyAll();
  }
  context_.TryCancel();
  receiver_.join();
}

void ReadStream::Receive() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) OnEvent(static_cast<Tag>(NumberOf(tag)), ok);
}

// One operation is open at a time, so that nothing is left when the call has finished.
void ReadStream::OnEvent(Tag tag, bool ok) {
  if (tag == kFinished) {
    {
      MutexLock lock(mutex_);
      end_ = FromGrpcStatus(grpc_status_);
      changed_.NotifyAll();
    }
    queue_.Shutdown();
    return;
  }
  // A request that could not be sent: the status comes after whatever the server said.
  if (!ok && tag != kSent) {
    call_->Finish(&grpc_status_, QueueTag(kFinished));
    return;
  }
  if (tag == kStarted) {
    call_->WriteLast(request_, grpc::WriteOptions(), QueueTag(kSent));
    return;
  }
  if (tag == kReceived) {
    MutexLock lock(mutex_);
    received_.push_back(std::move(incoming_));
    changed_.NotifyAll();
  }
  ReadNext();
}

void ReadStream::ReadNext() {
  {
    MutexLock lock(mutex_);
    while (received_.size() >= kWindow && !cancelled_) changed_.Wait(mutex_);
  }
  incoming_ = grpc::ByteBuffer();
  call_->Read(&incoming_, QueueTag(kReceived));
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
  absl::StatusOr<ReceivedBytes> bytes = ReceivedBytes::From(message);
  if (!bytes.ok()) return bytes.status();
  return std::optional<ReceivedBytes>(*std::move(bytes));
}

}  // namespace routing_replay::client
