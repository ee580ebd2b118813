#include "client/channel/link.h"

#include <utility>

#include "client/channel/channel.h"

namespace routing_replay::client {

absl::StatusOr<std::shared_ptr<Link>> Link::Open(absl::string_view endpoint, bool use_http_proxy,
                                                 const SecuritySettings& settings, std::chrono::milliseconds timeout) {
  auto given = EndpointOrEnvironment(endpoint);
  if (!given.ok()) return given.status();
  auto security = ClientSecurity::Create(settings, use_http_proxy);
  if (!security.ok()) return security.status();
  std::shared_ptr<Link> link(new Link(*std::move(given), use_http_proxy, *std::move(security)));
  const auto target = link->choice_.Wait(timeout);
  if (!target.ok()) return target.status();
  {
    MutexLock lock(link->mutex_);
    link->Follow();
  }
  if (const auto connection = link->Connect(); !connection.ok()) return connection.status();
  return link;
}

absl::StatusOr<ServerConnection> Link::Connect() const {
  auto authorization = security_->Authorization();
  if (!authorization.ok()) return authorization.status();
  MutexLock lock(mutex_);
  if (!channel_.ok()) return channel_.status();
  if (*channel_ == nullptr) channel_ = MakeChannel(target_, keys_, use_http_proxy_);
  return ServerConnection{*channel_, *std::move(authorization)};
}

void Link::Rest() {
  MutexLock lock(mutex_);
  if (channel_.ok()) channel_ = nullptr;
}

void Link::LookAgain() {
  choice_.LookAgain();
  MutexLock lock(mutex_);
  Follow();
}

absl::Status Link::OnEnd(const ServerConnection& connection, const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return security_->Judge(connection.authorization, status);
  MutexLock lock(mutex_);
  if (!channel_.ok() || connection.channel == *channel_) {
    choice_.OnUnavailable(target_.target);
    Follow();
  }
  return status;
}

void Link::Follow() {
  const auto target = choice_.Wait(std::chrono::milliseconds(0));
  if (!target.ok()) return;
  auto keys = security_->KeysFor(target->judged());
  const bool same_target = *target == target_;
  target_ = *target;
  if (!keys.ok()) {
    // Files that cannot be read for a moment do no harm to a channel that is there.
    if (!same_target || !channel_.ok() || *channel_ == nullptr) channel_ = keys.status();
    return;
  }
  if (same_target && channel_.ok() && *channel_ != nullptr && *keys == keys_) return;
  keys_ = *std::move(keys);
  channel_ = MakeChannel(target_, keys_, use_http_proxy_);
}

}  // namespace routing_replay::client
