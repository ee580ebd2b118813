// Names, addresses and connections below gRPC, each with a reason of its own when it fails.
#ifndef CLIENT_RRCTL_DOCTOR_SOCKETS_H_
#define CLIENT_RRCTL_DOCTOR_SOCKETS_H_

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/rrctl/doctor/servers.h"

namespace routing_replay::client {

struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
  std::string text;  // "127.0.0.1:7400", "[::1]:7400", "unix:PATH"
};

// Every address of the server, as the system's resolver gives them. NOT_FOUND with its reason; INVALID_ARGUMENT for a
// path that is too long. May take as long as the resolver does.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const ServerAddress& server);

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

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_SOCKETS_H_
