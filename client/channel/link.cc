#include "client/channel/link.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "client/call/cancellation.h"
#include "proto/wire/message/grpc_bytes.h"
#include "proto/wire/status_macros.h"

namespace routing_replay::client {

namespace {

struct ChannelOption {
  const char* name;
  int value;
};

// Load balancing for ServerTarget::round_robin: spreads calls over the addresses of a DNS name.
constexpr char kPolicyOption[] = "grpc.lb_policy_name";
constexpr char kRoundRobin[] = "round_robin";

constexpr ChannelOption kChannelOptions[] = {
    // HTTP proxies named in environment variables are ignored.
    {"grpc.enable_http_proxy", 0},
    // Gives each channel its own connection. Sharing would also let a forked child use its parent's connections, on
    // which it gets no answer.
    {"grpc.use_local_subchannel_pool", 1},
    {"grpc.max_receive_message_length", -1},
    {"grpc.max_send_message_length", -1},
    // Accept no compression, because gRPC decompresses without a size limit.
    {"grpc.compression_enabled_algorithms_bitset", 1},
    // Detects within 40 s a server that died without closing the connection. The server accepts a ping every 10 s.
    {"grpc.keepalive_time_ms", 30'000},
    {"grpc.keepalive_timeout_ms", 10'000},
    {"grpc.http2.max_pings_without_data", 0},
    // Short backoff, so that a restarted server is found quickly.
    {"grpc.initial_reconnect_backoff_ms", 100},
    // gRPC also uses this as the timeout of one connection attempt (up to the SETTINGS frame), for which a busy
    // machine needs time.
    {"grpc.min_reconnect_backoff_ms", 5'000},
    {"grpc.max_reconnect_backoff_ms", 2'000},
    // Resolve often enough to find a server that came back with another address. gRPC resolves a name only after a
    // connection broke.
    {"grpc.dns_min_time_between_resolutions_ms", 1'000},
};

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const ChannelKeys& keys) {
  if (!keys.encrypted) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials(
      {.pem_root_certs = keys.root_certificates, .pem_private_key = keys.key, .pem_cert_chain = keys.certificate});
}

google::protobuf::LogHandler* others_handler = nullptr;

// Drops protobuf's log line about text that is not UTF-8, because the call ends with an error that says the same. All
// other lines go to the previous handler, because the host process may use the same libprotobuf.
void HandleProtobufLine(google::protobuf::LogLevel level, const char* file, int line, const std::string& message) {
  if (absl::StrContains(message, "invalid UTF-8 data")) return;
  if (others_handler != nullptr) others_handler(level, file, line, message);
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const ServerTarget& target, const ChannelKeys& keys) {
  static std::once_flag once;
  std::call_once(once, [] { others_handler = google::protobuf::SetLogHandler(HandleProtobufLine); });
  grpc::ChannelArguments arguments;
  for (const ChannelOption& option : kChannelOptions) arguments.SetInt(option.name, option.value);
  if (target.round_robin) arguments.SetString(kPolicyOption, kRoundRobin);
  if (!keys.server_name.empty()) arguments.SetString(kServerNameOption, keys.server_name);
  return grpc::CreateCustomChannel(target.target, CredentialsOf(keys), arguments);
}

absl::StatusOr<std::shared_ptr<Link>> Link::Open(absl::string_view endpoint, const SecuritySettings& settings,
                                                 std::chrono::milliseconds timeout) {
  RR_ASSIGN_OR_RETURN(auto security, ClientSecurity::Create(settings));
  std::shared_ptr<Link> link(new Link(std::string(endpoint), std::move(security), timeout));
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
  // If a name has several addresses, the direct path might reach another server than gRPC does.
  const absl::string_view not_direct = target_.round_robin ? "the endpoint is a name of several servers" : "";
  return ServerConnection{*channel_, std::move(authorization), target_.target, direct_tls_, not_direct};
}

std::unique_ptr<DirectConnection> Link::BeginDirect(const ServerConnection& connection, const std::string& method,
                                                    Clock::Time deadline) {
  std::unique_ptr<DirectConnection> direct;
  if (connection.not_direct.empty()) direct = direct_.Begin(connection, method, deadline);
  MutexLock lock(mutex_);
  metrics_.transport = direct == nullptr ? "grpc" : direct->transport();
  ++(metrics_.transport == "grpc"     ? metrics_.grpc_streams
     : metrics_.transport == "direct" ? metrics_.direct_streams
     : metrics_.transport == "unix"   ? metrics_.unix_streams
                                      : metrics_.shm_streams);
  return direct;
}

absl::StatusOr<std::string> Link::LookForDirect(const ServerConnection& connection) {
  if (!connection.not_direct.empty()) return absl::NotFoundError(connection.not_direct);
  return direct_.Look(connection);
}

ClientMetrics Link::metrics() const {
  MutexLock lock(mutex_);
  return metrics_;
}

void Link::EndDirect(const ServerConnection& connection, std::unique_ptr<DirectConnection> direct,
                     const absl::Status& status) {
  if (status.ok()) direct_.GiveBack(connection, std::move(direct));
  if (absl::IsUnavailable(status)) direct_.OnBroken();
}

void Link::Rest() {
  direct_.OnBroken();
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
  channel_ = MakeChannel(target_, keys_);
}

RawStream::RawStream(const ServerConnection& connection, const char* method, grpc::CompletionQueue& queue,
                     std::optional<Clock::Time> deadline)
    : stub_(connection.channel) {
  connection.Authorize(context_);
  if (deadline) context_.set_deadline(GrpcDeadline(*deadline));
  call_ = stub_.PrepareCall(&context_, method, &queue);
  call_->StartCall(QueueTag(kStarted));
}

RawStream::Event RawStream::OnEvent(void* tag, bool ok) {
  Event event;
  switch (static_cast<Tag>(NumberOf(tag))) {
    case kStarted:
      break;
    case kWritten:
      writing_ = false;
      broken_ = broken_ || !ok;
      break;
    case kReceived:
      receiving_ = false;
      if (ok) event.message = std::exchange(incoming_, {});
      break;
    case kEnded:
      event.end = FromGrpcStatus(status_);
      return event;
  }
  // Read until a read fails, because the server may have sent messages before the call broke. Only then finish the
  // call.
  if (tag != QueueTag(kWritten) && ok) {
    receiving_ = true;
    call_->Read(&incoming_, QueueTag(kReceived));
  } else if (!receiving_ && !writing_) {
    call_->Finish(&status_, QueueTag(kEnded));
  }
  return event;
}

void RawStream::Write(std::string header, absl::Span<const absl::Span<const uint8_t>> payload,
                      const std::shared_ptr<const void>& owner, bool last) {
  ByteBufferBuilder builder;
  builder.Add(std::move(header));
  for (const absl::Span<const uint8_t> part : payload) builder.Add(part, owner);
  writing_ = true;
  grpc::WriteOptions options;
  if (last) options.set_last_message();
  call_->Write(builder.Build(), options, QueueTag(kWritten));
}

}  // namespace routing_replay::client
