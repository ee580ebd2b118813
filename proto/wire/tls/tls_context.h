// TLS settings of one end: the certificate that it presents, and the authorities that it trusts. Certificates and keys
// are PEM texts.
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

// A context for TlsStream: TLS 1.2 and 1.3 with gRPC's ciphers, without session resumption. INVALID_ARGUMENT names what
// cannot be used. `certificate` is a chain: the own certificate first, then the intermediate ones.
// `client_authorities`: clients must present a certificate signed by one of these; if empty, clients are not asked for
// one.
absl::StatusOr<TlsContext> ServerTlsContext(absl::string_view certificate, absl::string_view key,
                                            absl::string_view client_authorities);
// The same for a client; `certificate` and `key` may be empty. If `authorities` is empty, the system's authorities are
// used, from the same files as gRPC uses.
absl::StatusOr<TlsContext> ClientTlsContext(absl::string_view certificate, absl::string_view key,
                                            absl::string_view authorities);

// Two of the steps of ServerTlsContext and ClientTlsContext, for code that makes its own SSL_CTX. INVALID_ARGUMENT
// names what cannot be used.
absl::Status TrustAuthorities(SSL_CTX* context, absl::string_view authorities);
absl::Status ShowCertificate(SSL_CTX* context, absl::string_view certificate, absl::string_view key);
// Requires that the peer's certificate contains this name or address. The check takes place in the handshake. Returns
// false if memory is exhausted.
bool ExpectName(SSL* connection, const std::string& name);
// Returns the oldest error in OpenSSL's queue of this thread, or `otherwise` if there is none. Clears the queue.
std::string TakeTlsReason(absl::string_view otherwise);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_TLS_TLS_CONTEXT_H_
