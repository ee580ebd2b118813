// TLS for the direct path, with the same settings as the gRPC channel.
#ifndef CLIENT_CHANNEL_DIRECT_TLS_H_
#define CLIENT_CHANNEL_DIRECT_TLS_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "client/channel/client_security.h"
#include "client/channel/endpoint.h"
#include "proto/wire/mutex.h"
#include "proto/wire/tls/tls_context.h"

namespace routing_replay::client {

// For one server. Thread-safe.
class DirectTls {
 public:
  // `target`: the target of the channel, which must be encrypted.
  DirectTls(std::shared_ptr<const ClientSecurity> security, const ServerTarget& target)
      : security_(std::move(security)), judged_(target.judged()), host_(HostOf(target.target)) {}

  // The TLS context and the expected name for a new connection.
  struct Ends {
    TlsContext own;
    std::string server_name;
  };
  // Reads the files now. Fails with the errors of ClientSecurity::KeysFor and of ClientTlsContext.
  absl::StatusOr<Ends> Look();

 private:
  const std::shared_ptr<const ClientSecurity> security_;
  const std::string judged_, host_;
  Mutex mutex_;
  ChannelKeys keys_ ABSL_GUARDED_BY(mutex_);
  TlsContext context_ ABSL_GUARDED_BY(mutex_);  // Made from keys_; null: not made yet.
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_DIRECT_TLS_H_
