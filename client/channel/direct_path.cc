#include "client/channel/direct_path.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/call/log.h"
#include "client/channel/channel.h"
#include "client/channel/client_security.h"
#include "proto/wire/security.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"

namespace routing_replay::client {
namespace {

constexpr std::chrono::minutes kAvoid(1);
constexpr size_t kMostIdle = 16;

// "dns:///host:port" and "dns:///%5Bv6%5D:port" without its port.
std::string HostOf(absl::string_view target) {
  if (!absl::ConsumePrefix(&target, "dns:///")) return "";
  const std::string host(target.substr(0, target.rfind(':')));
  return absl::StrReplaceAll(host, {{"%5B", ""}, {"%5D", ""}, {"%25", "%"}});
}

bool IsHere(absl::string_view target) {
  if (absl::StartsWith(target, "unix:")) return true;
  const std::string host = HostOf(target);
  return IsLocalAddress(absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:1") : absl::StrCat(host, ":1"));
}

}  // namespace

DirectPath::DirectPath()
    : transport_([] {
        const char* value = std::getenv(kTransportVariable);
        const absl::string_view wanted = value == nullptr ? "" : value;
        if (wanted == "auto") return Transport::kAuto;
        if (wanted == "direct") return Transport::kTcp;
        if (wanted == "unix") return Transport::kUnix;
        if (!wanted.empty() && wanted != "grpc") {
          Log(absl::StrCat(kTransportVariable, ": must be auto, grpc, direct or unix, got \"", wanted,
                           "\"; taken as grpc"));
        }
        return Transport::kGrpc;
      }()) {}

std::unique_ptr<DirectConnection> DirectPath::Begin(const Server& server, const std::string& method,
                                                    Clock::Time deadline) {
  if (transport_ == Transport::kGrpc) return nullptr;
  const Clock::Time soon = std::min(deadline, Clock::Real().Now() + kPatience);
  if (auto known = Known(server)) {
    if (auto connection = BeginAt(*known, method, deadline)) return connection;
    OnBroken();  // The server may have been started again.
  }
  {
    MutexLock lock(mutex_);
    if (avoided_ == server.channel && Clock::Real().Now() < avoid_until_) return nullptr;
  }
  const auto offer = Ask(server, soon);
  if (!offer) return nullptr;
  auto connection = BeginAt(*offer, method, deadline);
  MutexLock lock(mutex_);
  if (connection != nullptr) {
    if (offer_ && offer_->server.channel != server.channel) idle_.clear();
    offer_ = offer;
    return connection;
  }
  avoided_ = server.channel;
  avoid_until_ = Clock::Real().Now() + kAvoid;
  Log("the direct path of the server cannot be reached: appends and reads go over gRPC for a minute");
  return nullptr;
}

std::optional<DirectPath::Offer> DirectPath::Known(const Server& server) {
  MutexLock lock(mutex_);
  const bool same = offer_ && offer_->server.channel == server.channel &&
                    offer_->server.authorization == server.authorization && Clock::Real().Now() < offer_->renew;
  return same ? offer_ : std::nullopt;
}

std::optional<DirectPath::Offer> DirectPath::Ask(const Server& server, Clock::Time deadline) {
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(deadline));
  if (!server.authorization.empty()) context.AddMetadata(kAuthorizationKey, server.authorization);
  v1::OpenDirectResponse response;
  const Clock::Time now = Clock::Real().Now();
  const grpc::Status status =
      v1::RoutingReplay::NewStub(server.channel)->OpenDirect(&context, v1::OpenDirectRequest(), &response);
  // What it does not answer at present, it may answer soon.
  if (!status.ok() && status.error_code() != grpc::StatusCode::UNIMPLEMENTED) return std::nullopt;
  Offer offer{.server = server,
              .addresses = {},
              .ticket = response.ticket(),
              .renew = now + std::chrono::milliseconds(response.ticket_ms() / 4)};
  const std::string host = HostOf(server.target);
  if (transport_ != Transport::kTcp && IsHere(server.target) && !response.unix_socket().empty()) {
    offer.addresses.push_back({.unix_socket = response.unix_socket()});
  }
  if (transport_ != Transport::kUnix && response.port() != 0 && !host.empty()) {
    offer.addresses.push_back({.host = host, .port = static_cast<int>(response.port())});
  }
  if (!offer.addresses.empty()) return offer;
  MutexLock lock(mutex_);
  avoided_ = server.channel;
  avoid_until_ = Clock::Real().Now() + kAvoid;
  return std::nullopt;
}

std::unique_ptr<DirectConnection> DirectPath::BeginAt(const Offer& offer, const std::string& method,
                                                      Clock::Time deadline) {
  const Clock::Time now = Clock::Real().Now();
  v1::DirectCall call;
  call.set_method(method);
  call.set_ticket(offer.ticket);
  if (deadline != Clock::Time::max()) {
    call.set_timeout_ms(std::max<int64_t>(1, std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count()));
  }
  const auto begin = [&](std::unique_ptr<DirectConnection> connection) {
    connection->Put(FrameType::kCall, call.SerializeAsString(), {});
    if (!connection->Send().ok()) connection.reset();
    return connection;
  };
  while (true) {
    std::unique_ptr<DirectConnection> idle;
    {
      MutexLock lock(mutex_);
      if (idle_.empty() || !offer_ || offer_->server.channel != offer.server.channel) break;
      idle = std::move(idle_.back());
      idle_.pop_back();
    }
    if (idle->IsFresh() && (idle = begin(std::move(idle))) != nullptr) return idle;
  }
  for (const DirectAddress& address : offer.addresses) {
    auto connection = DirectConnection::Dial(address, std::min(deadline, Clock::Real().Now() + kPatience));
    if (!connection.ok()) continue;
    if (auto begun = begin(*std::move(connection))) return begun;
  }
  return nullptr;
}

void DirectPath::GiveBack(const Server& server, std::unique_ptr<DirectConnection> connection) {
  MutexLock lock(mutex_);
  const bool same = offer_ && offer_->server.channel == server.channel;
  if (same && idle_.size() < kMostIdle) idle_.push_back(std::move(connection));
}

void DirectPath::OnBroken() {
  MutexLock lock(mutex_);
  offer_.reset();
  idle_.clear();
}

}  // namespace routing_replay::client
