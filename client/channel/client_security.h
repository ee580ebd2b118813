// Certificates for a connection and the token for a call, from SecuritySettings. Knows no gRPC.
#ifndef CLIENT_CHANNEL_CLIENT_SECURITY_H_
#define CLIENT_CHANNEL_CLIENT_SECURITY_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"
#include "proto/wire/security.h"
#include "routing_replay/security.h"

namespace routing_replay::client {

// The metadata key of the token.
inline constexpr char kAuthorizationKey[] = "authorization";
// Channel argument: the name that a certificate must have instead of the target's.
inline constexpr char kServerNameOption[] = "grpc.ssl_target_name_override";

// `settings`, with empty fields taken from the environment.
SecuritySettings OrEnvironment(SecuritySettings settings);

// Keys of a channel, as PEM texts. Empty: the system's authorities, and no client certificate.
struct ChannelKeys {
  bool encrypted = false;
  std::string root_certificates;
  std::string certificate;
  std::string key;
  std::string server_name;
  friend bool operator==(const ChannelKeys&, const ChannelKeys&) = default;
};

// Thread-safe.
class ClientSecurity {
 public:
  // Empty fields of `settings` are taken from the environment. INVALID_ARGUMENT (kField): a certificate without its
  // key, or the reverse. `use_http_proxy`: whether channels may go through proxies, so that others may see what they
  // carry.
  static absl::StatusOr<std::shared_ptr<ClientSecurity>> Create(SecuritySettings settings, bool use_http_proxy);

  // The keys for a new channel to a gRPC target, from the files as they are now; waits half a second at most while a
  // certificate or its key is changing. INVALID_ARGUMENT (kField) naming the setting: a file that cannot be read; a
  // cacert file without a certificate; a token that would be sent without encryption to another machine or through a
  // proxy.
  absl::StatusOr<ChannelKeys> KeysFor(absl::string_view target) const;
  // The value of kAuthorizationKey for a new call, "" without a token. INVALID_ARGUMENT (kField): the file cannot be
  // read, or its first line is not a token.
  absl::StatusOr<std::string> Authorization() const;
  // The status of a call that carried `authorization`, as retries should see it: if its token was rejected and the file
  // has another token now, UNAVAILABLE, because a retry may succeed.
  absl::Status Judge(absl::string_view authorization, const absl::Status& end) const;

 private:
  ClientSecurity(SecuritySettings settings, bool use_http_proxy);

  const SecuritySettings settings_;
  const bool use_http_proxy_;
  mutable Mutex mutex_;
  mutable std::optional<ChangingFile> token_file_ ABSL_GUARDED_BY(mutex_);
  mutable absl::StatusOr<std::string> authorization_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_CLIENT_SECURITY_H_
