// `rrctl doctor`: from this machine, can the server be used, and if not, why and what is to be done?
//
// Each check gives a finding.
#ifndef CLIENT_RRCTL_DOCTOR_H_
#define CLIENT_RRCTL_DOCTOR_H_

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/channel/client_security.h"
#include "client/rrctl/output.h"
#include "proto/wire/clock.h"
#include "routing_replay/client.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"

namespace routing_replay::client {

class Application;
void AddDoctor(Application& application);

enum class Verdict { kOk, kWarn, kFail, kSkip };
const char* VerdictName(Verdict verdict);

struct Finding {
  std::string server;  // The member of the endpoint, set by Examine; empty: the endpoint as a whole.
  std::string check;
  Verdict verdict = Verdict::kOk;
  std::string what;                     // In words.
  std::string fix;                      // What to do; empty where nothing is to be done.
  Document facts = Document::object();  // The same in numbers.
};

// {"verdict": the worst, "checks": [{"server", "check", "verdict", "what", "fix", "facts"}]}
Document ToDocument(const std::vector<Finding>& findings);
// The same as columns for people, without the numbers, and without the name of the server where there is only one.
Document FindingTable(const std::vector<Finding>& findings);
bool AnyFailed(const std::vector<Finding>& findings);

// One of the servers that an endpoint names.
struct ServerAddress {
  std::string endpoint;  // As a client takes it.
  std::string host;      // A name, or an address without brackets.
  std::string port;
  std::string unix_path;  // Not empty: a socket of this machine instead of host and port.
};

// Of every kind of endpoint that a client takes, or of the environment's where it is empty. INVALID_ARGUMENT (field
// endpoint) for what is not an endpoint, DEADLINE_EXCEEDED where the file of a "file:PATH" stays empty for `timeout`.
absl::StatusOr<std::vector<ServerAddress>> ServersOf(absl::string_view endpoint, std::chrono::milliseconds timeout);

// Below gRPC, which would only say that it has no connection: name, connection, and a TLS handshake, each with a reason
// of its own when it fails (connection_checks.cc).

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

// Fills `addresses`.
Finding CheckName(const ServerAddress& server, std::vector<SocketAddress>& addresses);

// Every address is tried; `reached` are those that take connections. A warning if only some do.
Finding CheckConnect(const std::vector<SocketAddress>& addresses, std::chrono::milliseconds timeout,
                     std::vector<SocketAddress>& reached);

// `keys`: with what the client speaks; without authorities those of the system are trusted. The process must ignore
// SIGPIPE: the server may close the connection that is written to.
Finding CheckTls(const ServerAddress& server, const SocketAddress& address, std::chrono::milliseconds timeout,
                 const ChannelKeys& keys);

// Those that need an answer of the server.

// One GetServerInfo, with the moments around it.
struct Answer {
  v1::ServerInfo info;
  Clock::Duration round_trip{};
  std::chrono::system_clock::time_point middle;  // By this machine's clock.
};

// The checks of one server, in order. Pure: what was seen is given.
Finding CheckFirstAnswer(const absl::StatusOr<Answer>& answer);
Finding CheckVersion(const v1::ServerInfo& info);
Finding CheckLimits(const v1::ServerInfo& info);
Finding CheckLatency(std::vector<Clock::Duration> round_trips);
// The fastest of several answers tells most exactly.
Finding CheckClock(const Answer& fastest);

// What the token may do on runs like `scratch`, a name that no run has.
struct Access {
  // Nothing: the server says neither yes nor no, as it does for runs that a token must not know of.
  std::optional<bool> put, read, admin;
};
Finding CheckAccess(const absl::StatusOr<Access>& access, const std::string& scratch);

struct DoctorOptions {
  // The names of runs start with this, for the question what the token allows on them.
  std::string run = "rrctl-doctor";
};

// The checks in order, of each server of the endpoint: "name", "connect", "tls", "service", "version", "limits",
// "latency", "clock"; then "access" of the endpoint as a whole. What needs a check that failed is not tried.
// INVALID_ARGUMENT (field endpoint) for what is not an endpoint. Makes and changes nothing on the server.
absl::StatusOr<std::vector<Finding>> Examine(const ClientOptions& client, const DoctorOptions& options = {});

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DOCTOR_H_
