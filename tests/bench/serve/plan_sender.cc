#include "tests/bench/serve/plan_sender.h"

#include <chrono>
#include <utility>

#include "client/call/cancellation.h"
#include "client/channel/link.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/grpc_bytes.h"

namespace routing_replay::bench {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::chrono::seconds kTimeout(60);

}  // namespace

PlanSender::PlanSender(std::shared_ptr<Link> link, const std::string& run)
    : link_(std::move(link)), session_({.run = run, .append_timeout = kTimeout}) {}

PlanSender::~PlanSender() {
  if (stream_) stream_->Cancel();
  void* tag = nullptr;
  bool ok = false;
  while (stream_ && events_.Next(&tag, &ok)) {
    const auto event = stream_->OnEvent(tag, ok);
    if (event.end) stream_.reset();
  }
  events_.Shutdown();
  while (events_.Next(&tag, &ok)) {
  }
}

absl::Status PlanSender::Send(std::vector<AppendPlan> plans) {
  for (AppendPlan& plan : plans) session_.Add(std::move(plan), Clock::Real().Now());
  while (session_.open_count() > 0) {
    if (absl::Status status = Step(); !status.ok()) return status;
    std::vector<AppendOutcome> outcomes;
    for (AppendQueue::Finished& append : session_.TakeFinished()) outcomes.push_back(std::move(append.outcome));
    session_.OnDelivered(outcomes);
  }
  return session_.TakeError();
}

absl::Status PlanSender::Connect() {
  auto connection = link_->Connect();
  if (!connection.ok()) return connection.status();
  connection_ = *std::move(connection);
  auto direct = link_->BeginDirect(connection_, "Append", Clock::Time::max());
  if (direct) {
    direct_ = std::make_unique<DirectAppendStream>(std::move(direct), sending_);
  } else {
    stream_ = std::make_unique<RawStream>(connection_, "/routing_replay.v1.RoutingReplay/Append", events_);
  }
  return absl::OkStatus();
}

absl::Status PlanSender::Step() {
  const bool can_write = direct_ ? direct_->CanWrite() : stream_ && stream_->CanWrite();
  AppendSession::Action action = session_.Next(Clock::Real().Now(), can_write);
  switch (action.step) {
    case AppendSession::Step::kConnect:
      return Connect();
    case AppendSession::Step::kSend:
      direct_ ? direct_->Write(std::move(action.message))
              : stream_->Write(std::move(action.message.header), action.message.payload, action.message.owner);
      return absl::OkStatus();
    case AppendSession::Step::kCancel:
      return absl::UnavailableError("the server makes no progress with the appends");
    case AppendSession::Step::kWait:
      return Wait(action.until);
  }
  return absl::OkStatus();
}

absl::Status PlanSender::Wait(Clock::Time until) {
  if (direct_) {
    constexpr int kNothingWakes = -1;
    const DirectAppendStream::Event event = direct_->Wait(kNothingWakes, until);
    if (event.message) return OnMessage(event.message->chain());
    return event.end ? OnEnd(*event.end) : absl::OkStatus();
  }
  void* tag = nullptr;
  bool ok = false;
  if (events_.AsyncNext(&tag, &ok, GrpcDeadline(until)) != grpc::CompletionQueue::GOT_EVENT) return absl::OkStatus();
  RawStream::Event event = stream_->OnEvent(tag, ok);
  if (event.message) {
    const auto bytes = ReceivedBytes::From(*event.message);
    return bytes.ok() ? OnMessage(bytes->chain()) : bytes.status();
  }
  return event.end ? OnEnd(*event.end) : absl::OkStatus();
}

absl::Status PlanSender::OnMessage(const absl::StatusOr<ByteChain>& message) {
  session_.OnMessage(message, Clock::Real().Now());
  return absl::OkStatus();
}

absl::Status PlanSender::OnEnd(const absl::Status& end) {
  stream_.reset();
  direct_.reset();
  return end.ok() ? absl::UnavailableError("the server ended the stream") : end;
}

}  // namespace routing_replay::bench
