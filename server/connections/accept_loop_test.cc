#include "server/connections/accept_loop.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/scratch_directory.h"

namespace routing_replay::server {
namespace {

using ::routing_replay::testing::ScratchDirectory;

void Await(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(done());
}

// A gRPC server behind an accept loop. It answers UNIMPLEMENTED to everything.
class ServedLoop {
 public:
  explicit ServedLoop(const std::string& address, const ConnectionLimits& limits = {})
      : loop_(limits, [this](ConnectionEvent event) { ++told_[static_cast<size_t>(event)]; }) {
    grpc::ServerBuilder builder;
    const auto listening = loop_.Listen(builder, address, grpc::InsecureServerCredentials());
    EXPECT_TRUE(listening.ok()) << listening.status();
    address_ = *listening;
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
    loop_.Start();
  }
  ~ServedLoop() {
    loop_.StopListening();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  const std::string& address() const { return address_; }
  int64_t told(ConnectionEvent event) const { return told_[static_cast<size_t>(event)]; }
  int64_t connections() const { return told(ConnectionEvent::kOpened) - told(ConnectionEvent::kEnded); }
  AcceptLoop& loop() { return loop_; }

 private:
  grpc::CallbackGenericService service_;
  std::atomic<int64_t> told_[5] = {};
  AcceptLoop loop_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// A connection that sends nothing.
class Client {
 public:
  explicit Client(const std::string& address) {
    if (absl::StartsWith(address, "unix:")) {
      sockaddr_un to{.sun_family = AF_UNIX, .sun_path = ""};
      std::strcpy(to.sun_path, address.c_str() + 5);
      Connect(AF_UNIX, &to, sizeof(to));
    } else {
      sockaddr_in to{};
      to.sin_family = AF_INET;
      to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
      to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      Connect(AF_INET, &to, sizeof(to));
    }
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { close(fd_); }

  // True if gRPC accepted the connection: on a plaintext connection gRPC sends its HTTP/2 settings at once.
  bool IsServed() const { return Receive() > 0; }
  bool IsClosed() const { return Receive() <= 0; }

 private:
  void Connect(int family, const void* to, socklen_t size) {
    fd_ = socket(family, SOCK_STREAM, 0);
    EXPECT_EQ(connect(fd_, static_cast<const sockaddr*>(to), size), 0) << std::strerror(errno);
    static constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";
    send(fd_, kPreface, sizeof(kPreface), MSG_NOSIGNAL);
  }
  ssize_t Receive() const {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&waiting, 1, 60'000), 1);
    char byte;
    return recv(fd_, &byte, 1, 0);
  }
  int fd_ = -1;
};

TEST(AcceptLoop, ConnectionsAreServedAndCounted) {
  const ScratchDirectory scratch;
  for (const std::string& address : {std::string("127.0.0.1:0"), std::string("[::]:0"), std::string("localhost:0"),
                                     absl::StrCat("unix:", scratch.path(), "/socket")}) {
    ServedLoop served(address);
    std::optional<Client> first(served.address()), second(served.address());
    EXPECT_TRUE(first->IsServed() && second->IsServed()) << address;
    Await([&] { return served.connections() == 2; });
    first.reset();
    Await([&] { return served.connections() == 1; });
  }
}

TEST(AcceptLoop, ASocketIsForUserAndGroupAndGoesWithItsServer) {
  const ScratchDirectory scratch;
  const std::string path = scratch.path() + "/socket";
  struct stat status;
  {
    const ServedLoop gone("unix:" + path), served("unix:" + path);
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & S_IRWXO, 0u);
    EXPECT_TRUE(Client("unix:" + path).IsServed());
  }
  EXPECT_NE(stat(path.c_str(), &status), 0);
}

TEST(AcceptLoop, AnAddressThatIsTakenIsNamedWithTheReason) {
  ServedLoop served("127.0.0.1:0");
  AcceptLoop second({}, [](ConnectionEvent) {});
  grpc::ServerBuilder builder;
  const auto taken = second.Listen(builder, served.address(), grpc::InsecureServerCredentials());
  EXPECT_EQ(taken.status(),
            absl::UnavailableError(absl::StrCat("cannot listen on ", served.address(), ": Address already in use")));
  const auto strange = second.Listen(builder, "192.0.2.1:0", grpc::InsecureServerCredentials());
  EXPECT_EQ(strange.status().message(), "cannot listen on 192.0.2.1:0: Cannot assign requested address");
  const auto deep = second.Listen(builder, "unix:/no/such/folder", grpc::InsecureServerCredentials());
  EXPECT_EQ(deep.status().message(), "cannot listen on unix:/no/such/folder: No such file or directory");
}

TEST(AcceptLoop, OverTheLimitConnectionsAreClosedAtOnce) {
  for (const ConnectionLimits limits : {ConnectionLimits{.connections = 2}, ConnectionLimits{.per_address = 2}}) {
    ServedLoop served("127.0.0.1:0", limits);
    std::optional<Client> first(served.address()), second(served.address());
    EXPECT_TRUE(first->IsServed() && second->IsServed());
    EXPECT_TRUE(Client(served.address()).IsClosed());
    EXPECT_EQ(served.told(ConnectionEvent::kRejected), 1);
    first.reset();
    Await([&] { return served.connections() == 1; });
    EXPECT_TRUE(Client(served.address()).IsServed());
  }
}

TEST(AcceptLoop, NoDescriptorsIsNotTheEnd) {
  ServedLoop served("127.0.0.1:0");
  EXPECT_TRUE(Client(served.address()).IsServed());
  Await([&] { return served.connections() == 0; });
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Lowers the limit so that only one descriptor is free. The client's own socket takes it, and the server has none
  // left.
  const int free = dup(0);
  close(free);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(free) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Client waiting(served.address());
  Await([&] { return served.told(ConnectionEvent::kWaiting) >= 2; });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(waiting.IsServed());
  EXPECT_TRUE(Client(served.address()).IsServed());
}

TEST(AcceptLoop, WhoComesAfterItStoppedFindsNobody) {
  ServedLoop served("127.0.0.1:0");
  const Client before(served.address());
  EXPECT_TRUE(before.IsServed());
  served.loop().StopListening();
  const int port = std::stoi(served.address().substr(served.address().rfind(':') + 1));
  Await([&] {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    const int connected = connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    close(fd);
    return connected != 0;
  });
  Await([&] { return served.connections() == 1; });  // Connections that were accepted in time end, too.
}

TEST(WithinDescriptors, LeavesThemToOthers) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 400;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(WithinDescriptors({.connections = 1000}).connections, 100);
  EXPECT_EQ(WithinDescriptors({.connections = 10}).connections, 10);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace routing_replay::server
