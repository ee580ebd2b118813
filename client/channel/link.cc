#include "client/channel/link.h"

#include <utility>

#include "client/channel/channel.h"

namespace routing_replay {

absl::StatusOr<std::shared_ptr<Link>> Link::Open(absl::string_view endpoint, bool use_http_proxy,
                                                 std::chrono::milliseconds timeout) {
  auto given = EndpointOrEnvironment(endpoint);
  if (!given.ok()) return given.status();
  std::shared_ptr<Link> link(new Link(*std::move(given), use_http_proxy));
  const auto target = link->choice_.Wait(timeout);
  if (!target.ok()) return target.status();
  MutexLock lock(link->mutex_);
  link->Follow();
  return link;
}

std::shared_ptr<grpc::Channel> Link::channel() const {
  MutexLock lock(mutex_);
  return channel_;
}

void Link::LookAgain() {
  choice_.LookAgain();
  MutexLock lock(mutex_);
  Follow();
}

void Link::OnEnd(const std::shared_ptr<grpc::Channel>& channel, const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return;
  MutexLock lock(mutex_);
  if (channel != channel_) return;
  choice_.OnUnavailable(target_.target);
  Follow();
}

void Link::Follow() {
  const auto target = choice_.Wait(std::chrono::milliseconds(0));
  if (!target.ok() || (channel_ != nullptr && *target == target_)) return;
  target_ = *target;
  channel_ = MakeChannel(target_, use_http_proxy_);
}

}  // namespace routing_replay
