// The checks below gRPC: name, connection, encryption.
#ifndef CLIENT_RRCTL_DOCTOR_CONNECTION_CHECKS_H_
#define CLIENT_RRCTL_DOCTOR_CONNECTION_CHECKS_H_

#include <chrono>
#include <optional>
#include <vector>

#include "client/rrctl/doctor/finding.h"
#include "client/rrctl/doctor/sockets.h"
#include "client/rrctl/doctor/tls_probe.h"

namespace routing_replay::client {

// Fills `addresses`.
Finding CheckName(const ServerAddress& server, std::vector<SocketAddress>& addresses);

// Every address is tried; `reached` are those that take connections. A warning if only some do.
Finding CheckConnect(const ServerAddress& server, const std::vector<SocketAddress>& addresses,
                     std::chrono::milliseconds timeout, std::vector<SocketAddress>& reached);

// `identity` is nothing where the client is to speak plaintext.
Finding CheckTls(const ServerAddress& server, const SocketAddress& address, std::chrono::milliseconds timeout,
                 const std::optional<TlsIdentity>& identity);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_CONNECTION_CHECKS_H_
