#include "client/channel/direct_path.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/call/cancellation.h"
#include "client/call/log.h"
#include "proto/wire/message/grpc_bytes.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"

namespace routing_replay::client {
namespace {

constexpr std::chrono::minutes kAvoid(1);
constexpr size_t kMostIdle = 16;

// The address to which a gRPC call went.
struct GrpcPeer {
  std::string host;  // An IP address; "" for a Unix socket.
  uint32_t port = 0;
};

// Parses the result of grpc::ClientContext::peer, for example "ipv4:1.2.3.4:7400", "ipv6:%5B::1%5D:7400" or
// "unix:PATH".
GrpcPeer PeerOf(absl::string_view peer) {
  if (!absl::ConsumePrefix(&peer, "ipv4:") && !absl::ConsumePrefix(&peer, "ipv6:")) return {};
  const size_t colon = peer.rfind(':');
  GrpcPeer parsed{.host = absl::StrReplaceAll(peer.substr(0, colon), {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}})};
  return absl::SimpleAtoi(peer.substr(colon + 1), &parsed.port) ? parsed : GrpcPeer();
}

absl::StatusOr<v1::OpenDirectResponse> CallOpenDirect(const ServerConnection& server, Clock::Time deadline,
                                                      GrpcPeer& peer) {
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(deadline));
  server.Authorize(context);
  v1::OpenDirectResponse response;
  const absl::Status status = FromGrpcStatus(
      v1::RoutingReplay::NewStub(server.channel)->OpenDirect(&context, v1::OpenDirectRequest(), &response));
  if (absl::IsUnimplemented(status))
    return absl::NotFoundError("the server does not support a direct path (another release)");
  if (!status.ok()) return status;
  peer = PeerOf(context.peer());
  return response;
}

// Makes the first message of a call. Without a `method` it is a greeting, which asks whether the right server listens:
// only the one that issued the ticket answers it with OK.
v1::DirectCall CallOf(const std::string& ticket, const std::string& method, Clock::Time deadline) {
  v1::DirectCall call;
  call.set_method(method);
  call.set_ticket(ticket);
  if (deadline != Clock::Time::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now());
    call.set_timeout_ms(std::max<int64_t>(1, left.count()));
  }
  return call;
}

// Checks who answers: another program may listen at this address, or another server may be behind it.
absl::Status Greet(DirectConnection& connection, const std::string& ticket, Clock::Time deadline) {
  v1::DirectCall greeting = CallOf(ticket, "", deadline);
  greeting.set_shared_memory(connection.address().shared_memory);
  connection.Put(FrameType::kCall, greeting.SerializeAsString(), {});
  RR_RETURN_IF_ERROR(connection.Send(deadline));
  if (greeting.shared_memory()) return connection.TakeMemory(deadline);
  RR_ASSIGN_OR_RETURN(const auto answer, connection.Receive(deadline));
  if (!answer) return absl::UnavailableError("no answer");
  const bool greeted = answer->type() == FrameType::kEnd && answer->header().empty();
  return greeted ? absl::OkStatus() : absl::UnavailableError("another server listens there");
}

Clock::Time SoonBefore(Clock::Time deadline, Clock::Time now) {
  return now + std::min<Clock::Duration>(DirectPath::kPatience, (deadline - now) / 2);
}

}  // namespace

DirectPath::Transport DirectPath::Wanted() {
  const char* value = std::getenv(kTransportVariable);
  const absl::string_view wanted = value == nullptr ? "" : value;
  if (wanted == "grpc") return Transport::kGrpc;
  if (wanted == "direct") return Transport::kTcp;
  if (wanted == "unix") return Transport::kUnix;
  if (wanted == "shm") return Transport::kShm;
  if (!wanted.empty() && wanted != "auto") {
    Log(absl::StrCat(kTransportVariable, ": must be auto, grpc, direct, unix or shm, got \"", wanted,
                     "\"; taken as auto"));
  }
  return Transport::kAuto;
}

DirectPath::DirectPath() : transport_(Wanted()) {}

DirectPath::Connection DirectPath::Begin(const ServerConnection& server, const std::string& method,
                                         Clock::Time deadline) {
  if (transport_ == Transport::kGrpc) return nullptr;
  const Clock::Time now = Clock::Real().Now(), soon = SoonBefore(deadline, now);
  const bool in_a_hurry = soon - now < kPatience;  // Then a missing answer does not mean a faulty server.
  // Put only queues the frame: a read sends it together with its request, so that the server wakes only once.
  const auto begin = [&](const Offer& offer) {
    auto connection = ConnectTo(server, offer, soon);
    if (connection.ok()) {
      (*connection)->Put(FrameType::kCall, CallOf(offer.ticket, method, deadline).SerializeAsString(), {});
    }
    return connection;
  };
  absl::Status broken;
  if (const auto known = Known(server)) {
    auto connection = begin(*known);
    if (connection.ok()) return *std::move(connection);
    broken = connection.status();
    OnBroken();  // The server may have restarted.
  }
  if (IsAvoided(server)) return nullptr;
  const auto offer = Ask(server, soon);
  if (!offer.ok()) {
    // Do not avoid the direct path of a server that cannot be reached at all: it may have one when it is back.
    const bool silent = absl::IsDeadlineExceeded(offer.status()) && !in_a_hurry;
    if (silent || absl::IsNotFound(offer.status())) Avoid(server, broken);
    return nullptr;
  }
  auto connection = begin(*offer);
  if (!connection.ok()) {
    if (!in_a_hurry) Avoid(server, connection.status());
    return nullptr;
  }
  MutexLock lock(mutex_);
  if (offer_ && !offer_->IsOf(server)) idle_.clear();
  offer_ = *offer;
  told_.clear();
  return *std::move(connection);
}

absl::StatusOr<std::string> DirectPath::Look(const ServerConnection& server) {
  if (transport_ == Transport::kGrpc) return absl::NotFoundError(absl::StrCat(kTransportVariable, " is grpc"));
  const Clock::Time soon = DeadlineAfter(Clock::Real().Now(), kPatience);
  RR_ASSIGN_OR_RETURN(const auto offer, Ask(server, soon));
  RR_ASSIGN_OR_RETURN(const auto connection, ConnectTo(server, offer, soon));
  const DirectAddress& address = connection->address();
  const absl::string_view transport = connection->transport();
  if (transport == "shm") return "shared memory of this machine";
  if (transport == "unix") return "a Unix socket of this machine";
  return absl::StrCat(server.tls == nullptr ? "TCP" : "TLS", " to ", address.host, " port ", address.port);
}

std::optional<DirectPath::Offer> DirectPath::Known(const ServerConnection& server) {
  MutexLock lock(mutex_);
  const bool same = offer_ && offer_->IsOf(server) && offer_->authorization == server.authorization &&
                    Clock::Real().Now() < offer_->renew;
  return same ? offer_ : std::nullopt;
}

bool DirectPath::IsAvoided(const ServerConnection& server) {
  MutexLock lock(mutex_);
  return avoided_ == server.target && Clock::Real().Now() < avoid_until_;
}

// Stops using the direct path to this server for kAvoid. Logs `why`, unless it is OK or a line was logged already.
void DirectPath::Avoid(const ServerConnection& server, const absl::Status& why) {
  MutexLock lock(mutex_);
  avoided_ = server.target;
  avoid_until_ = Clock::Real().Now() + kAvoid;
  if (why.ok() || std::exchange(told_, server.target) == server.target) return;
  Log(absl::StrCat(
      "the direct path of the server cannot be reached, so appends and reads go over gRPC; the direct path is "
      "tried again every minute: ",
      why.message()));
}

absl::StatusOr<DirectPath::Offer> DirectPath::Ask(const ServerConnection& server, Clock::Time deadline) const {
  GrpcPeer peer;
  const Clock::Time now = Clock::Real().Now();
  RR_ASSIGN_OR_RETURN(const auto response, CallOpenDirect(server, deadline, peer));
  if (response.ticket().empty()) return absl::NotFoundError("the server has no direct path");
  if (response.encrypted() != (server.tls != nullptr)) {
    return absl::NotFoundError(absl::StrCat("the direct path of the server is ", response.encrypted() ? "" : "not ",
                                            "encrypted, unlike this connection"));
  }
  const auto& ports = response.grpc_ports();
  if (!peer.host.empty() && std::find(ports.begin(), ports.end(), peer.port) == ports.end()) {
    return absl::NotFoundError(absl::StrCat("something between here and the server listens on port ", peer.port,
                                            ", for example a proxy, which must not be bypassed"));
  }
  Offer offer{.target = server.target,
              .authorization = server.authorization,
              .tls = server.tls,
              .addresses = {},
              .ticket = response.ticket(),
              .renew = now + std::chrono::milliseconds(response.ticket_ms() / 4)};
  const bool here = peer.host.empty() || IsOfThisMachine(peer.host);
  const auto may = [this](Transport one) { return transport_ == Transport::kAuto || transport_ == one; };
  if (here && !response.unix_socket().empty()) {
    const std::string& socket = response.unix_socket();
    if (may(Transport::kShm)) offer.addresses.push_back({.unix_socket = socket, .shared_memory = true});
    if (may(Transport::kUnix)) offer.addresses.push_back({.unix_socket = socket});
  }
  if (may(Transport::kTcp) && response.port() != 0 && !peer.host.empty()) {
    offer.addresses.push_back({.host = peer.host, .port = static_cast<int>(response.port())});
  }
  if (offer.addresses.empty()) return absl::NotFoundError("the server offers no transport that this client may use");
  return offer;
}

DirectPath::Connection DirectPath::TakeIdle(const ServerConnection& server) {
  MutexLock lock(mutex_);
  if (idle_.empty() || !offer_ || !offer_->IsOf(server)) return nullptr;
  Connection idle = std::move(idle_.back());
  idle_.pop_back();
  return idle;
}

absl::StatusOr<DirectPath::Connection> DirectPath::ConnectTo(const ServerConnection& server, const Offer& offer,
                                                             Clock::Time deadline) {
  while (Connection idle = TakeIdle(server)) {
    if (idle->IsFresh()) return idle;
  }
  absl::Status last;
  for (const DirectAddress& address : offer.addresses) {
    auto connection = DirectConnection::Dial(address, server.tls.get(), deadline);
    last = connection.ok() ? Greet(**connection, offer.ticket, deadline) : connection.status();
    const bool without = last.ok() && transport_ == Transport::kShm && !(*connection)->in_memory();
    if (without) last = absl::UnavailableError("the server has no shared memory left");
    if (last.ok()) return connection;
  }
  return last;
}

void DirectPath::GiveBack(const ServerConnection& server, Connection connection) {
  MutexLock lock(mutex_);
  if (offer_ && offer_->IsOf(server) && idle_.size() < kMostIdle) idle_.push_back(std::move(connection));
}

void DirectPath::OnBroken() {
  MutexLock lock(mutex_);
  offer_.reset();
  idle_.clear();
}

}  // namespace routing_replay::client
