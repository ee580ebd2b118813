// `rrctl doctor`: checks whether the server can be used from this machine; if not, says why and how to fix it.
#ifndef CLIENT_RRCTL_DOCTOR_H_
#define CLIENT_RRCTL_DOCTOR_H_

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/channel/client_security.h"
#include "client/rrctl/output.h"
#include "routing_replay/client.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"

namespace routing_replay::client {

class Application;
void AddDoctor(Application& application);

enum class Verdict { kOk, kWarn, kFail };
const char* VerdictName(Verdict verdict);

struct Finding {
  std::string server;  // The server of the endpoint that was checked.
  std::string check;
  Verdict verdict = Verdict::kOk;
  std::string what;  // The finding in words.
  std::string fix;   // How to fix it; empty if there is nothing to fix.
};

Finding Failed(const char* check, std::string what, std::string fix);
// Makes an ok finding a warning.
void Warn(Finding& finding, std::string fix);

// {"verdict": the worst verdict of all checks, "checks": [{"server", "check", "verdict", "what", "fix"}]}
Document ToDocument(const std::vector<Finding>& findings);

// One of the servers that an endpoint names.
struct ServerAddress {
  std::string endpoint;  // The address in the form that a client takes.
  std::string host;      // A name, or an address without brackets.
  std::string port;
  std::string unix_path;  // Not empty: the path of a Unix socket, instead of host and port.
};

// Returns the servers of an endpoint of any kind that a client accepts; if it is empty, of that in
// ROUTING_REPLAY_ENDPOINT. INVALID_ARGUMENT (field endpoint) for a malformed endpoint, DEADLINE_EXCEEDED if the file of
// a "file:PATH" stays empty for `timeout`.
absl::StatusOr<std::vector<ServerAddress>> ServersOf(absl::string_view endpoint, std::chrono::milliseconds timeout);

// Checks below gRPC, which would only report that it has no connection: name, connection, and a TLS handshake, each
// with its own reason for a failure (connection_checks.cc).

struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
  std::string text;  // "127.0.0.1:7400", "[::1]:7400", "unix:PATH"
};

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

// Returns a connected, blocking socket whose reads and writes end after `timeout`. UNAVAILABLE: refused or no route.
// DEADLINE_EXCEEDED: no answer, for example because a firewall drops packets.
absl::StatusOr<Socket> ConnectTo(const SocketAddress& address, std::chrono::milliseconds timeout);

// Fills `addresses`.
Finding CheckName(const ServerAddress& server, std::vector<SocketAddress>& addresses);

// Tries to connect to every address. Puts those that accept connections into `reached`. The verdict is a warning if
// only some of them do.
Finding CheckConnect(const std::vector<SocketAddress>& addresses, std::chrono::milliseconds timeout,
                     std::vector<SocketAddress>& reached);

// `keys`: the client's certificate and trusted authorities; if it has no authorities, the system's are trusted. The
// process must ignore SIGPIPE, because the server may close the connection while it is written to.
Finding CheckTls(const ServerAddress& server, const SocketAddress& address, std::chrono::milliseconds timeout,
                 const ChannelKeys& keys);

// Checks of an answer from the server. They are pure functions of their arguments.

Finding CheckService(const absl::StatusOr<v1::ServerInfo>& info);
Finding CheckVersion(const v1::ServerInfo& info);

// `way`: the result of Link::LookForDirect.
Finding CheckTransport(const absl::StatusOr<std::string>& way);

// The checks in order, of each server of the endpoint: "name", "connect", "tls", "service", "version", "transport".
// Checks that depend on a failed one are left out. INVALID_ARGUMENT (field endpoint) for a malformed endpoint.
absl::StatusOr<std::vector<Finding>> Examine(const ClientOptions& client);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_H_
