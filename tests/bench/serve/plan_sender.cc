#include "tests/bench/serve/plan_sender.h"

#include <chrono>
#include <utility>

#include "client/channel/channel.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/grpc_bytes.h"

namespace routing_replay::bench {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

constexpr std::chrono::seconds kTimeout(60);

}  // namespace

PlanSender::PlanSender(const std::shared_ptr<grpc::Channel>& channel, const std::string& run)
    : connection_{.channel = channel}, session_({.run = run, .append_timeout = kTimeout}) {}

PlanSender::~PlanSender() {
  if (stream_) stream_->Cancel();
  void* tag = nullptr;
  bool ok = false;
  while (stream_ && events_.Next(&tag, &ok)) {
    const auto event = stream_->OnEvent(static_cast<AppendStream::Tag>(reinterpret_cast<intptr_t>(tag)), ok);
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

absl::Status PlanSender::Step() {
  AppendSession::Action action = session_.Next(Clock::Real().Now(), stream_ && stream_->CanWrite());
  switch (action.step) {
    case AppendSession::Step::kConnect:
      stream_ = std::make_unique<AppendStream>(connection_, events_);
      return absl::OkStatus();
    case AppendSession::Step::kSend:
      stream_->Write(std::move(action.message));
      return absl::OkStatus();
    case AppendSession::Step::kCancel:
      return absl::UnavailableError("the server does not take the appends");
    case AppendSession::Step::kWait:
      break;
  }
  void* tag = nullptr;
  bool ok = false;
  if (events_.AsyncNext(&tag, &ok, GrpcDeadline(action.until)) != grpc::CompletionQueue::GOT_EVENT) {
    return absl::OkStatus();
  }
  return OnEvent(stream_->OnEvent(static_cast<AppendStream::Tag>(reinterpret_cast<intptr_t>(tag)), ok));
}

absl::Status PlanSender::OnEvent(AppendStream::Event event) {
  if (event.message) {
    const auto bytes = ReceivedBytes::From(*event.message);
    if (!bytes.ok()) return bytes.status();
    session_.OnMessage(bytes->chain(), Clock::Real().Now());
  }
  if (!event.end) return absl::OkStatus();
  stream_.reset();
  return event.end->ok() ? absl::UnavailableError("the server ended the stream") : *event.end;
}

}  // namespace routing_replay::bench
