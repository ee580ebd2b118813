// A TLS handshake apart from gRPC, which would only say that it has no connection.
#ifndef CLIENT_RRCTL_DOCTOR_TLS_PROBE_H_
#define CLIENT_RRCTL_DOCTOR_TLS_PROBE_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/rrctl/doctor/sockets.h"

namespace routing_replay::client {

// PEM texts; what is empty is left out, without authorities those of the system are taken.
struct TlsIdentity {
  std::string authorities;
  std::string certificate;
  std::string key;
  std::string name;  // That the server's certificate must have.
};

// What came of a handshake. Whatever the server shows is told even if it is not trusted.
struct TlsProbe {
  std::string version;    // "TLSv1.3"
  std::string subject;    // Of the server's certificate, …
  std::string names;      // … its alternative names, "DNS:a, IP Address:127.0.0.1",
  std::string issuer;     // and who signed it.
  std::string not_after;  // RFC 3339.
  int64_t seconds_left = 0;
  bool http2 = false;    // The server agreed to speak HTTP/2.
  std::string distrust;  // Why the certificate is not accepted; empty: it is.
  std::string ended;     // How the server ended the connection behind the handshake; empty: it did not.
};

// UNAVAILABLE: what answers speaks no TLS, or ends the handshake. A server that wants another certificate of the
// client, or one at all, may say so in the handshake or end the connection behind it. INVALID_ARGUMENT: authorities,
// certificate or key are no PEM.
absl::StatusOr<TlsProbe> ProbeTls(const Socket& socket, const TlsIdentity& identity);

// Whether what listens there answers TLS at all.
bool SpeaksTls(const Socket& socket);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_TLS_PROBE_H_
