// TLS towards Redis: what is trusted and what is shown, and a connection's session.
#ifndef SERVER_STORE_REDIS_CLIENT_REDIS_TLS_H_
#define SERVER_STORE_REDIS_CLIENT_REDIS_TLS_H_

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/store/redis/client/redis_endpoint.h"

namespace routing_replay::server {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using UniqueSsl = std::unique_ptr<SSL, FreeSsl>;

// Immutable; thread-safe. TLS 1.2 or newer; the server's certificate must be signed by the CA and name the host that
// was asked for (by name or by address): nodes of a cluster that announce themselves by address need the address in
// their certificates, or cluster-preferred-endpoint-type hostname.
class RedisTls {
 public:
  // Reads the files of `endpoint`, which must be a TLS one. INVALID_ARGUMENT (kField: ca_file, cert_file, key_file).
  static absl::StatusOr<std::shared_ptr<const RedisTls>> Create(const RedisEndpoint& endpoint);

  // A client's session over the non-blocking socket `*fd`, which it does not own and which must outlive it; the
  // handshake is still to come. Writing to a closed socket raises no signal.
  absl::StatusOr<UniqueSsl> NewSession(int* fd, const std::string& host) const;

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, FreeContext> context_;
};

// What OpenSSL has to say about the last failure of this thread, and clears it.
std::string TakeTlsError();

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_CLIENT_REDIS_TLS_H_
