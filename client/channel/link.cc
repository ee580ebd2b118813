#include "client/channel/link.h"

#include <utility>

#include "client/channel/channel.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {

absl::StatusOr<std::shared_ptr<Link>> Link::Open(absl::string_view endpoint, bool use_http_proxy,
                                                 const SecuritySettings& settings, std::chrono::milliseconds timeout) {
  RR_ASSIGN_OR_RETURN(auto given, EndpointOrEnvironment(endpoint));
  RR_ASSIGN_OR_RETURN(auto security, ClientSecurity::Create(settings, use_http_proxy));
  std::shared_ptr<Link> link(new Link(std::move(given), use_http_proxy, std::move(security), timeout));
  absl::Status status = link->choice_.Wait(std::chrono::milliseconds(0)).status();
  if (absl::IsDeadlineExceeded(status)) return link;
  if (status.ok()) status = link->Connect().status();
  if (!status.ok()) return status;
  return link;
}

absl::StatusOr<ServerConnection> Link::Connect() {
  RR_ASSIGN_OR_RETURN(auto authorization, security_->Authorization());
  RR_RETURN_IF_ERROR(choice_.Wait(timeout_).status());
  MutexLock lock(mutex_);
  if (!channel_.ok() || *channel_ == nullptr) Follow();
  if (!channel_.ok()) return channel_.status();
  // Reasons not to use the direct path: it would bypass the proxy, or might reach another server than gRPC does.
  const char* why_not = use_http_proxy_       ? "calls may go through an HTTP proxy"
                        : target_.round_robin ? "the endpoint is a name of several servers"
                                              : "";
  return ServerConnection{*channel_, std::move(authorization), *why_not == '\0' ? target_.target : "", why_not,
                          direct_tls_};
}

std::unique_ptr<DirectConnection> Link::BeginDirect(const ServerConnection& connection, const std::string& method,
                                                    Clock::Time deadline) {
  std::unique_ptr<DirectConnection> direct;
  if (!connection.direct_target.empty()) direct = direct_.Begin(connection.ForDirect(), method, deadline);
  MutexLock lock(mutex_);
  metrics_.transport = direct == nullptr ? "grpc" : direct->transport();
  ++(metrics_.transport == "grpc"     ? metrics_.grpc_streams
     : metrics_.transport == "direct" ? metrics_.direct_streams
     : metrics_.transport == "unix"   ? metrics_.unix_streams
                                      : metrics_.shm_streams);
  return direct;
}

absl::StatusOr<std::string> Link::LookForDirect(const ServerConnection& connection) {
  if (connection.direct_target.empty()) return absl::NotFoundError(connection.why_not);
  return direct_.Look(connection.ForDirect());
}

ClientMetrics Link::metrics() const {
  MutexLock lock(mutex_);
  return metrics_;
}

void Link::EndDirect(const ServerConnection& connection, std::unique_ptr<DirectConnection> direct,
                     const absl::Status& status) {
  if (status.ok()) direct_.GiveBack(connection.ForDirect(), std::move(direct));
  if (absl::IsUnavailable(status)) direct_.OnBroken();
}

void Link::Rest() {
  direct_.Rest();
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
  const bool is_there = *target == target_ && channel_.ok() && *channel_ != nullptr;
  target_ = *target;
  if (!keys.ok()) {
    // If files cannot be read now, keep using the existing channel.
    if (!is_there) channel_ = keys.status();
    return;
  }
  if (is_there && *keys == keys_) return;
  keys_ = *std::move(keys);
  direct_tls_ = keys_.encrypted ? std::make_shared<DirectTls>(security_, target_) : nullptr;
  channel_ = MakeChannel(target_, keys_, use_http_proxy_);
}

}  // namespace routing_replay::client
