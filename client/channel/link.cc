#include "client/channel/link.h"

#include <utility>

#include "client/channel/channel.h"
#include "client/channel/endpoint.h"

namespace routing_replay {

absl::StatusOr<std::shared_ptr<Link>> Link::Open(absl::string_view endpoint, bool use_http_proxy,
                                                 std::chrono::milliseconds timeout) {
  auto given = EndpointOrEnvironment(endpoint);
  if (!given.ok()) return given.status();
  auto target = ResolveEndpoint(*given, timeout);
  if (!target.ok()) return target.status();
  return std::shared_ptr<Link>(new Link(*std::move(given), *std::move(target), use_http_proxy));
}

Link::Link(std::string endpoint, std::string target, bool use_http_proxy)
    : endpoint_(std::move(endpoint)),
      use_http_proxy_(use_http_proxy),
      target_(std::move(target)),
      channel_(MakeChannel(target_, use_http_proxy)) {}

std::shared_ptr<grpc::Channel> Link::channel() const {
  MutexLock lock(mutex_);
  return channel_;
}

void Link::LookAgain() {
  auto target = ResolveEndpoint(endpoint_, std::chrono::milliseconds(0));
  if (!target.ok()) return;
  MutexLock lock(mutex_);
  if (*target == target_) return;
  target_ = *std::move(target);
  channel_ = MakeChannel(target_, use_http_proxy_);
}

void Link::OnEnd(const absl::Status& status) {
  if (absl::IsUnavailable(status)) LookAgain();
}

}  // namespace routing_replay
