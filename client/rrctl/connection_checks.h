// The checks of `rrctl doctor` below gRPC, which would only say that it has no connection: name, connection, and a TLS
// handshake, each with a reason of its own when it fails.
#ifndef CLIENT_RRCTL_CONNECTION_CHECKS_H_
#define CLIENT_RRCTL_CONNECTION_CHECKS_H_

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/doctor.h"

namespace routing_replay::client {

struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
  std::string text;  // "127.0.0.1:7400", "[::1]:7400", "unix:PATH"
};

// Owns a descriptor.
class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// A connected socket, blocking, whose reads and writes end after `timeout`. UNAVAILABLE: refused or no way there;
// DEADLINE_EXCEEDED: no answer, as from a firewall that drops.
absl::StatusOr<Socket> ConnectTo(const SocketAddress& address, std::chrono::milliseconds timeout);

// PEM texts, each of which may be empty; without authorities those of the system are used.
struct TlsIdentity {
  std::string authorities;
  std::string certificate;
  std::string key;
  std::string name;  // That the server's certificate must have.
};

// Fills `addresses`.
Finding CheckName(const ServerAddress& server, std::vector<SocketAddress>& addresses);

// Every address is tried; `reached` are those that take connections. A warning if only some do.
Finding CheckConnect(const ServerAddress& server, const std::vector<SocketAddress>& addresses,
                     std::chrono::milliseconds timeout, std::vector<SocketAddress>& reached);

// `identity` is nothing where the client speaks plaintext.
Finding CheckTls(const ServerAddress& server, const SocketAddress& address, std::chrono::milliseconds timeout,
                 const std::optional<TlsIdentity>& identity);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_CONNECTION_CHECKS_H_
