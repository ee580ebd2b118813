// Reads certificates for a connection and the token for a call, as SecuritySettings says. Independent of gRPC.
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
// Channel argument with the name that the server's certificate must have, instead of the target's.
inline constexpr char kServerNameOption[] = "grpc.ssl_target_name_override";

// Returns `settings` with empty fields taken from environment variables.
SecuritySettings OrEnvironment(SecuritySettings settings);

// Certificates of a channel, as PEM texts. Without root_certificates, the system's certificate authorities are trusted;
// without certificate and key, the client sends no certificate.
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
  // Empty fields of `settings` are taken from environment variables. INVALID_ARGUMENT (kField) for a certificate
  // without its key, or the reverse.
  static absl::StatusOr<std::shared_ptr<ClientSecurity>> Create(SecuritySettings settings);

  // Reads the files now, for a new channel to a gRPC target. Waits at most half a second while a certificate or its key
  // is being replaced. INVALID_ARGUMENT (kField) naming the setting: a file that cannot be read; a cacert file without
  // a certificate; a token that would be sent without encryption to another machine.
  absl::StatusOr<ChannelKeys> KeysFor(absl::string_view target) const;
  // Returns the value of kAuthorizationKey for a new call, "" without a token. INVALID_ARGUMENT (kField) if the file
  // cannot be read, or if its first line is not a token.
  absl::StatusOr<std::string> Authorization() const;
  // Converts the status of a call that carried `authorization` for the retry rule: if the token was rejected but the
  // file has another token now, returns UNAVAILABLE, because a retry may succeed.
  absl::Status Judge(absl::string_view authorization, const absl::Status& end) const;

 private:
  explicit ClientSecurity(SecuritySettings settings);

  const SecuritySettings settings_;
  mutable Mutex mutex_;
  mutable std::optional<ChangingFile> token_file_ ABSL_GUARDED_BY(mutex_);
  mutable absl::StatusOr<std::string> authorization_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::client

#endif  // CLIENT_CHANNEL_CLIENT_SECURITY_H_
