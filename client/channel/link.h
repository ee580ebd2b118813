// Channels to the servers of an endpoint.
#ifndef CLIENT_CHANNEL_LINK_H_
#define CLIENT_CHANNEL_LINK_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/call/fork_part.h"
#include "client/channel/client_security.h"
#include "client/channel/direct_path.h"
#include "client/channel/endpoint.h"
#include "proto/wire/mutex.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// A channel, and the metadata of calls on it.
struct ServerConnection {
  std::shared_ptr<grpc::Channel> channel;
  std::string authorization;
  std::string direct_target = {};  // Of the channel, where its server may be asked for a direct path; else …
  const char* why_not = "";        // … why it is not.
  std::shared_ptr<DirectTls> direct_tls = {};  // Where the channel is encrypted.

  DirectPath::Server ForDirect() const { return {channel, authorization, direct_target, direct_tls}; }
  // Call it before the call begins.
  void Authorize(grpc::ClientContext& context) const {
    if (!authorization.empty()) context.AddMetadata(kAuthorizationKey, authorization);
  }
};

// Thread-safe. Around a fork there is no channel; each side makes its own again.
class Link final : private ForkPart {
 public:
  // The endpoint as for ResolveEndpoint, with its errors, and the settings with those of ClientSecurity. Does not wait:
  // the file of a "file:PATH" may be written later. `timeout` is used by Connect.
  static absl::StatusOr<std::shared_ptr<Link>> Open(absl::string_view endpoint, bool use_http_proxy,
                                                    const SecuritySettings& security,
                                                    std::chrono::milliseconds timeout);

  // The connection to the present server, for one call, which stays on it. Waits for the file of a "file:PATH" if that
  // was empty so far: DEADLINE_EXCEEDED. Errors of ClientSecurity.
  absl::StatusOr<ServerConnection> Connect();
  // A call of `method` on the server of `connection` over its direct path; null: it is to be made over gRPC. As of
  // DirectPath::Begin.
  std::unique_ptr<DirectConnection> BeginDirect(const ServerConnection& connection, const std::string& method,
                                                Clock::Time deadline);
  // As DirectPath::Look.
  absl::StatusOr<std::string> LookForDirect(const ServerConnection& connection);
  // Of all calls that were asked for by BeginDirect.
  ClientMetrics metrics() const;
  // It ended with `status`.
  void EndDirect(const ServerConnection& connection, std::unique_ptr<DirectConnection> direct,
                 const absl::Status& status);
  // As those of ServerChoice.
  bool HasOthers() const { return choice_.HasOthers(); }
  void LookAgain();
  // The end of a call on `connection`: after UNAVAILABLE the next calls go to another server, if there is one, or use
  // new certificates. Returns ClientSecurity::Judge of `status`.
  absl::Status OnEnd(const ServerConnection& connection, const absl::Status& status);

 private:
  Link(std::string endpoint, bool use_http_proxy, std::shared_ptr<const ClientSecurity> security,
       std::chrono::milliseconds timeout)
      : use_http_proxy_(use_http_proxy),
        timeout_(timeout),
        security_(std::move(security)),
        choice_(std::move(endpoint), ServerChoice::AnyBegin()) {}
  void Rest() override;
  // Makes a channel to the present server, if the server or the keys have changed.
  void Follow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool use_http_proxy_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<const ClientSecurity> security_;
  ServerChoice choice_;
  DirectPath direct_;
  mutable Mutex mutex_;
  ClientMetrics metrics_ ABSL_GUARDED_BY(mutex_);
  ServerTarget target_ ABSL_GUARDED_BY(mutex_);
  ChannelKeys keys_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DirectTls> direct_tls_ ABSL_GUARDED_BY(mutex_);  // Null: keys_ are none.
  // To target_ with keys_, or the error; null: not made yet.
  absl::StatusOr<std::shared_ptr<grpc::Channel>> channel_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_LINK_H_
