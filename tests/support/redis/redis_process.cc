#include "tests/support/redis/redis_process.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::testing {
namespace {

constexpr char kServer[] = "/usr/bin/redis-server";
// In the package redis-tools the same program has this name. It acts as a server if argv[0] is "redis-server".
constexpr char kOtherName[] = "/usr/bin/redis-check-rdb";
constexpr char kSetPriv[] = "/usr/bin/setpriv";
constexpr int kStartAttempts = 5;
constexpr std::chrono::seconds kStartTimeout(10);
constexpr std::chrono::seconds kAskTimeout(2);
constexpr std::chrono::milliseconds kPoll(10);

// A socket bound to a free port, which stays reserved while the socket is open.
struct BoundSocket {
  BoundSocket() : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (bind(fd, generic, size) == 0 && getsockname(fd, generic, &size) == 0) port = ntohs(address.sin_port);
  }
  ~BoundSocket() { close(fd); }
  int fd;
  uint16_t port = 0;
};

}  // namespace

std::string NoRedisReason() {
  const bool found = access(kServer, X_OK) == 0 || access(kOtherName, X_OK) == 0;
  return found ? "" : "redis-server is not installed (Debian: redis-tools or redis-server)";
}

absl::StatusOr<RedisPorts> FreeRedisPorts() {
  const BoundSocket client, cluster;
  if (client.port == 0 || cluster.port == 0) return absl::InternalError("no free ports");
  return RedisPorts{client.port, cluster.port};
}

RedisProcess::RedisProcess(RedisPorts ports, std::vector<std::string> settings, RedisEndpoint endpoint)
    : ports_(ports), settings_(std::move(settings)), endpoint_(std::move(endpoint)) {}

absl::StatusOr<std::unique_ptr<RedisProcess>> RedisProcess::Start(const std::vector<std::string>& settings,
                                                                  RedisEndpoint endpoint, const std::string& host) {
  absl::Status status;
  // Another process may take the port before the server binds it.
  for (int attempt = 0; attempt < kStartAttempts; ++attempt) {
    const auto ports = FreeRedisPorts();
    if (!ports.ok()) return ports.status();
    endpoint.seeds = {{host, ports->client}};
    std::unique_ptr<RedisProcess> server(new RedisProcess(*ports, settings, endpoint));
    if (endpoint.tls) {
      auto tls = NewRedisTls(endpoint);
      if (!tls.ok()) return tls.status();
      server->tls_ = *std::move(tls);
    }
    status = server->Run();
    if (status.ok()) return server;
  }
  return status;
}

absl::Status RedisProcess::Run() {
  const std::string port = absl::StrCat(ports_.client);
  const std::string program = directory_.path() + "/redis-server";
  std::error_code exists;
  std::filesystem::create_symlink(access(kServer, X_OK) == 0 ? kServer : kOtherName, program, exists);
  std::vector<std::string> arguments = {kSetPriv, "--pdeathsig", "KILL", program};
  if (endpoint_.tls) {
    arguments.insert(arguments.end(), {"--port", "0", "--tls-port", port});
  } else {
    arguments.insert(arguments.end(), {"--port", port});
  }
  arguments.insert(arguments.end(), {"--bind", "127.0.0.1", "--dir", directory_.path(), "--save", "", "--loglevel",
                                     "warning", "--logfile", directory_.path() + "/log"});
  arguments.insert(arguments.end(), settings_.begin(), settings_.end());
  if (std::find(settings_.begin(), settings_.end(), "--cluster-enabled") != settings_.end()) {
    arguments.insert(arguments.end(), {"--cluster-port", absl::StrCat(ports_.cluster)});
  }
  auto process = Process::Start(arguments);
  if (!process.ok()) return process.status();
  process_ = *std::move(process);
  return AwaitAnswer();
}

absl::Status RedisProcess::AwaitAnswer() {
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    const auto reply = Ask(RedisCommand({"PING"}));
    if (reply.ok() && reply->text == "PONG") return absl::OkStatus();
    if (process_->Wait(kPoll).ok()) return absl::UnavailableError("redis-server ended at its start");
  }
  return absl::DeadlineExceededError("redis-server does not answer");
}

absl::Status RedisProcess::Restart() {
  Kill();
  return Run();
}

absl::StatusOr<std::unique_ptr<RedisProcess>> RedisProcess::StartReplica() const {
  const auto at_once = Ask(RedisCommand({"CONFIG", "SET", "repl-diskless-sync-delay", "0"}));
  if (!at_once.ok()) return at_once.status();
  auto replica = Start({"--replicaof", address().host, absl::StrCat(address().port)});
  if (!replica.ok()) return replica.status();
  const auto deadline = std::chrono::steady_clock::now() + kStartTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    const auto state = Ask(RedisCommand({"INFO", "replication"}));
    if (state.ok() && absl::StrContains(state->text, "state=online")) return replica;
    std::this_thread::sleep_for(kPoll);
  }
  return absl::DeadlineExceededError("the replica does not follow");
}

absl::StatusOr<RedisReply> RedisProcess::Ask(const RedisCommand& command) const {
  const Clock::Time deadline = Clock::Real().Now() + kAskTimeout;
  const auto connection = RedisConnection::Open(address(), endpoint_, tls_, deadline);
  if (!connection.ok()) return connection.status();
  auto replies = (*connection)->Exchange(absl::MakeConstSpan(&command, 1), deadline);
  if (!replies.ok()) return replies.status();
  return std::move(replies->front());
}

}  // namespace routing_replay::testing
