#include "client/shard/member.h"

#include <algorithm>
#include <utility>

#include "client/cancellation.h"
#include "client/channel/channel.h"
#include "client/server_limits.h"
#include "proto/convert/convert.h"

namespace routing_replay::client {
namespace {

// How long a server is tried that was not there the last time.
constexpr std::chrono::milliseconds kBrief = std::chrono::seconds(1);
constexpr std::chrono::milliseconds kNoTime(0);

absl::StatusOr<std::vector<int64_t>> AskFor(const Member& member, const v1::StatRequest& request,
                                            Clock::Time deadline) {
  absl::StatusOr<v1::StatResponse> response;
  const auto once = [&] {
    grpc::ClientContext context;
    const OnCancel cancel([&] { context.TryCancel(); });
    context.set_deadline(GrpcDeadline(deadline));
    response = member.patient()->CallOnce(context, &v1::RoutingReplay::Stub::Stat, request);
    return response.status();
  };
  const Clock::Time give_up = DeadlineAfter(Clock::Real().Now(), member.is_gone() ? kNoTime : kBrief);
  const absl::Status status = RetryUnavailable(RetrySchedule(std::min(give_up, deadline)), RetryTime::Real(), once);
  std::vector<int64_t> handles;
  if (IsNoRun(status)) return handles;
  if (!status.ok()) return status;
  for (const v1::SampleState& state : response->found()) handles.push_back(state.handle());
  return handles;
}

}  // namespace

Member::Member(std::string endpoint, std::shared_ptr<Link> link, std::chrono::milliseconds timeout)
    : endpoint_(std::move(endpoint)),
      patient_(std::make_shared<const Caller>(link, timeout)),
      brief_(std::make_shared<const Caller>(std::move(link), std::min(timeout, kBrief), true)) {}

absl::StatusOr<std::unique_ptr<Member>> Member::Open(const std::string& endpoint, const ClientOptions& options) {
  auto link = Link::Open(endpoint, options.use_http_proxy, options.security, options.call_timeout);
  if (!link.ok()) return link.status();
  return std::unique_ptr<Member>(new Member(endpoint, *std::move(link), options.call_timeout));
}

absl::StatusOr<std::shared_ptr<MemberSet>> MemberSet::Open(const ClientOptions& options) {
  auto names = ShardMembers::Parse(options.endpoint);
  if (!names.ok()) return names.status();
  std::shared_ptr<MemberSet> set(new MemberSet(*std::move(names)));
  for (const std::string& endpoint : set->names_.endpoints()) {
    auto member = Member::Open(endpoint, options);
    if (!member.ok()) return member.status();
    set->members_.push_back(*std::move(member));
  }
  return set;
}

size_t MemberSet::FirstGone() const {
  for (size_t member = 0; member < members_.size(); ++member) {
    if (members_[member]->is_gone()) return member;
  }
  return 0;
}

std::vector<std::optional<std::vector<int64_t>>> MemberSet::Locate(const std::string& run, Producer producer,
                                                                   const std::vector<int64_t>& handles,
                                                                   Clock::Time deadline) const {
  v1::StatRequest request;
  request.set_run(run);
  request.set_producer(ToProto(producer));
  request.mutable_handles()->Add(handles.begin(), handles.end());
  deadline = NoLaterThanCall(std::min(deadline, DeadlineAfter(Clock::Real().Now(), kAskTimeout)));
  return FanOut(members_.size(), [&](size_t member) -> std::optional<std::vector<int64_t>> {
    auto found = AskFor(*members_[member], request, deadline);
    members_[member]->OnEnd(found.status());
    if (!found.ok()) return std::nullopt;
    return *std::move(found);
  });
}

}  // namespace routing_replay::client
