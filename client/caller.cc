#include "client/caller.h"

#include <algorithm>

#include "client/call/cancellation.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {

bool IsUnreachable(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

absl::Status Caller::Attempt(Repeat repeat, const OneCall& attempt) const {
  Clock::Time deadline = DeadlineOfCall(timeout_);
  if (!is_one_of_several_) return AttemptBy(deadline, repeat, attempt);
  if (is_gone_) deadline = std::min(deadline, DeadlineAfter(Clock::Real().Now(), kBrief));
  absl::Status status = AttemptBy(deadline, repeat, attempt);
  is_gone_ = IsUnreachable(status);
  return status;
}

absl::Status Caller::AttemptBy(Clock::Time deadline, Repeat repeat, const OneCall& attempt) const {
  struct End {
    absl::Status said;    // The status from the server.
    absl::Status judged;  // The result of Link::OnEnd: UNAVAILABLE if a retry may succeed.
  };
  const auto once = [&](bool wait_for_ready, const OneCall& call) {
    if (absl::Status over = CheckCall(); !over.ok()) return End{over, over};
    grpc::ClientContext context;
    const OnCancel cancel([&] { context.TryCancel(); });
    context.set_deadline(GrpcDeadline(deadline));
    context.set_wait_for_ready(wait_for_ready);
    const auto connection = link_->Connect();
    if (!connection.ok()) return End{connection.status(), connection.status()};
    connection->Authorize(context);
    absl::Status said = call(connection->channel, context);
    absl::Status judged = link_->OnEnd(*connection, said);
    return End{std::move(said), std::move(judged)};
  };
  const auto again = [&](const OneCall& call) {
    RetrySchedule schedule(deadline);
    while (true) {
      absl::Status judged = once(false, call).judged;
      const auto wait = schedule.WaitAfter(judged, Clock::Real().Now());
      if (!wait) return judged;
      SleepInCall(*wait);
    }
  };
  if (repeat == Repeat::kAlways) return again(attempt);
  link_->LookAgain();  // The server may have a new address; otherwise the call would wait for the old one.
  if (link_->HasOthers()) {
    absl::Status found = again([](const Channel& channel, grpc::ClientContext& context) {
      v1::ServerInfo info;
      return FromGrpcStatus(NewStub(channel)->GetServerInfo(&context, v1::GetServerInfoRequest(), &info));
    });
    if (!found.ok()) return found;
  }
  RR_RETURN_IF_ERROR(KeepCall());
  const End end = once(true, attempt);
  // A call whose token was rejected had no effect, so it may be sent again.
  const bool with_another_token = absl::IsUnauthenticated(end.said) && absl::IsUnavailable(end.judged);
  return with_another_token ? once(true, attempt).said : end.said;
}

}  // namespace routing_replay::client
