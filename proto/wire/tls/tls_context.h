// What an end of TLS connections shows, and whom it trusts. Certificates and keys are PEM texts.
#ifndef PROTO_WIRE_TLS_TLS_CONTEXT_H_
#define PROTO_WIRE_TLS_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay {
inline namespace wire {

using TlsContext = std::shared_ptr<SSL_CTX>;

// For TlsStream: TLS 1.2 and 1.3 with the ciphers of gRPC, without sessions that are resumed. INVALID_ARGUMENT saying
// what cannot be used. `certificate`: followed by those that lead to a root; may be empty for a client.
// `client_authorities`: clients must show a certificate of one of these; empty: they are not asked.
absl::StatusOr<TlsContext> ServerTlsContext(absl::string_view certificate, absl::string_view key,
                                            absl::string_view client_authorities);
// `authorities`: empty: the system's, as gRPC finds them.
absl::StatusOr<TlsContext> ClientTlsContext(absl::string_view certificate, absl::string_view key,
                                            absl::string_view authorities);

// Parts of these. INVALID_ARGUMENT.
absl::Status TrustAuthorities(SSL_CTX* context, absl::string_view authorities);
absl::Status ShowCertificate(SSL_CTX* context, absl::string_view certificate, absl::string_view key);
// The certificate of the other end must have this name or address, which is not judged before the handshake.
void ExpectName(SSL* connection, const std::string& name);
// The oldest reason that OpenSSL has given on this thread, or `otherwise`; it forgets all.
std::string TakeTlsReason(absl::string_view otherwise);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_TLS_TLS_CONTEXT_H_
