// What SecuritySettings come to for a connection and for a call. Knows no gRPC.
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

// With what the environment says where `settings` are empty.
SecuritySettings OrEnvironment(SecuritySettings settings);

// What a channel is made with. PEM texts; empty where there is none: then the system's authorities, and no certificate.
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
  // With what the environment says where `settings` are empty. INVALID_ARGUMENT (kField): a certificate without its
  // key, or the reverse. `use_http_proxy`: as the channels are made, so that what they carry may come by others.
  static absl::StatusOr<std::shared_ptr<ClientSecurity>> Create(SecuritySettings settings, bool use_http_proxy);

  // Of a new channel to a gRPC target, the files as they are now; waits half a second at most where a certificate or
  // its key changes just now. INVALID_ARGUMENT (kField) naming the setting: a file that cannot be read; a cacert
  // without a certificate in it; a token that would go elsewhere, or to a proxy, without encryption.
  absl::StatusOr<ChannelKeys> KeysFor(absl::string_view target) const;
  // Of a new call: the value of kAuthorizationKey, "" without a token. INVALID_ARGUMENT (kField): the file cannot be
  // read, or its first line is no token.
  absl::StatusOr<std::string> Authorization() const;
  // How a call ended that carried `authorization`, as retries are to see it: a token that was rejected because another
  // one has come into the file meanwhile is UNAVAILABLE, as time cures it.
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
