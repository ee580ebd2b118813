// Servers that close old connections: no call of a client may fail because of it, and clients must find servers that
// are added to the name that they use.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/channel/link.h"
#include "proto/wire/mutex.h"
#include "routing_replay/v1/routing_replay.grpc.pb.h"
#include "tests/integration/fixture.h"

namespace routing_replay::testing {

using namespace client;  // NOLINT(google-build-using-namespace)

namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAge(1000), kPause(20);
constexpr std::chrono::seconds kPatience(60);

// A DNS server on a free port of 127.0.0.1 that returns the same addresses for every name.
class NameServer {
 public:
  explicit NameServer(const std::string& address) : fd_(socket(AF_INET, SOCK_DGRAM, 0)), addresses_({address}) {
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(here);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&here), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&here), &size), 0);
    port_ = ntohs(here.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~NameServer() {
    stopping_ = true;
    thread_.join();
    close(fd_);
  }

  int port() const { return port_; }
  void Add(const std::string& address) {
    MutexLock lock(mutex_);
    addresses_.push_back(address);
  }

 private:
  // RFC 1035: the answer repeats the question; a query for IPv4 addresses gets the addresses with a TTL of 0.
  std::string Answer(const std::string& question) {
    constexpr size_t kHeader = 12;
    const size_t end = question.find('\0', kHeader) + 5;  // The type and the class follow the name.
    const bool v4 = question.substr(end - 4, 2) == std::string("\0\1", 2);
    MutexLock lock(mutex_);
    const char count = static_cast<char>(v4 ? addresses_.size() : 0);
    std::string answer = question.substr(0, 2) + std::string("\x84\0\0\1\0", 5) + count + std::string(4, '\0') +
                         question.substr(kHeader, end - kHeader);
    for (int i = 0; i < count; ++i) {
      in_addr address{};
      inet_pton(AF_INET, addresses_[static_cast<size_t>(i)].c_str(), &address);
      answer += std::string("\xc0\x0c\0\1\0\1\0\0\0\0\0\4", 12);
      answer.append(reinterpret_cast<const char*>(&address), sizeof(address));
    }
    return answer;
  }
  void Serve() {
    while (!stopping_) {
      pollfd wait{fd_, POLLIN, 0};
      if (poll(&wait, 1, /*timeout=*/20) <= 0) continue;
      char bytes[512];
      sockaddr_in peer{};
      socklen_t size = sizeof(peer);
      const ssize_t got = recvfrom(fd_, bytes, sizeof(bytes), 0, reinterpret_cast<sockaddr*>(&peer), &size);
      if (got < 17) continue;
      const std::string answer = Answer(std::string(bytes, static_cast<size_t>(got)));
      sendto(fd_, answer.data(), answer.size(), 0, reinterpret_cast<const sockaddr*>(&peer), size);
    }
  }

  const int fd_;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<std::string> addresses_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

class ConnectionAgeTest : public ServerTest {
 protected:
  static ServerConfig Aging() {
    ServerConfig config;
    config.max_connection_age = kAge;
    config.direct_listen = std::string(kOff);  // Direct connections do not age.
    return config;
  }
  int64_t AppendCalls() {
    const auto info = client_->GetServerInfo();
    EXPECT_OK(info);
    int64_t calls = 0;
    for (const auto& [name, value] : info->counters) {
      if (absl::StartsWith(name, "routing_replay_rpcs_total{") && absl::StrContains(name, "method=\"Append\"")) {
        calls += value;
      }
    }
    return calls;
  }
};

// An Append stream lasts longer than the maximum age of a connection. The appender sends again what the server has not
// acknowledged when it closes the connection.
TEST_F(ConnectionAgeTest, NoCallFailsByIt) {
  ServerConfig config = Aging();
  config.max_connection_age_grace = kAge;
  StartServer(config);
  const Geometry geometry = Geometry::Uniform(1, 4, 1);
  const RunHandle run = OpenRun("run", geometry);
  const RandomRoutes routes = MakeRandomRoutes(geometry, 1 << 14, 7);
  const auto appender = run->NewAppender();
  int64_t rows = 0;
  const auto deadline = steady_clock::now() + kPatience;
  while (AppendCalls() < 2 && steady_clock::now() < deadline) {
    const std::vector<int32_t> tensor = routes.Tensor({rows, rows + 1});
    ASSERT_OK(appender->Append({.sample = "s", .row_start = rows}, Int32Tensor(geometry, 1), AsBytes(tensor)));
    ++rows;
    ASSERT_OK(PutRows(*run, routes, {0, 1}, {.sample = absl::StrCat("put/", rows)}));
    ASSERT_OK(run->ReadRows({.samples = {{.sample = "put/1"}}}, kCallTimeout));
    std::this_thread::sleep_for(kPause);
  }
  ASSERT_OK(appender->Flush(kPatience));
  EXPECT_GE(AppendCalls(), 2);  // Counts ended calls, so two connections were closed.
  ExpectRows(*run, "s", routes, {{0, rows}});
}

TEST_F(ConnectionAgeTest, AServerThatWasAddedBehindTheNameIsFound) {
  ServerConfig config = Aging();
  config.listen = {"127.0.0.2:0"};
  ASSERT_OK_AND_ASSIGN(const auto first, Server::Start(config));
  const std::string port = first->advertised().substr(first->advertised().rfind(':'));
  NameServer names("127.0.0.2");
  const auto channel = MakeChannel(
      {.target = absl::StrCat("dns://127.0.0.1:", names.port(), "/servers.test", port), .round_robin = true}, {});
  const auto stub = v1::RoutingReplay::NewStub(channel);
  std::set<std::string> peers;
  const auto call = [&] {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::ServerInfo info;
    const grpc::Status status = stub->GetServerInfo(&context, {}, &info);
    peers.insert(context.peer());
    return status;
  };
  ASSERT_TRUE(call().ok());
  config.listen = {absl::StrCat("127.0.0.3", port)};
  ASSERT_OK_AND_ASSIGN(const auto second, Server::Start(config));
  names.Add("127.0.0.3");
  const auto deadline = steady_clock::now() + kPatience;
  while (peers.size() < 2 && steady_clock::now() < deadline) {
    const grpc::Status status = call();
    ASSERT_TRUE(status.ok()) << status.error_message();
    std::this_thread::sleep_for(kPause);
  }
  EXPECT_EQ(peers, (std::set<std::string>{absl::StrCat("ipv4:127.0.0.2", port), absl::StrCat("ipv4:127.0.0.3", port)}));
}

}  // namespace
}  // namespace routing_replay::testing
