#include "server/store/redis/client/redis_connection.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Listens on the loopback interface and never accepts.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    const sockaddr_in any{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(name_);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
    EXPECT_EQ(listen(fd_, 0), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&name_), &size), 0);
  }
  ~Listener() {
    for (const int fd : queued_) close(fd);
    close(fd_);
  }

  addrinfo* address() { return &address_; }
  // Fills the queue of connections that nobody accepts. After that, new connections get no answer.
  void FallSilent() {
    while (true) {
      const auto fd = ConnectInTurn(&address_, Clock::Real().Now() + milliseconds(100));
      if (!fd.ok()) return;
      queued_.push_back(*fd);
    }
  }
  // After this call, new connections are refused.
  void Close() { shutdown(fd_, SHUT_RDWR); }

 private:
  const int fd_;
  sockaddr_in name_{};
  addrinfo address_{.ai_family = AF_INET,
                    .ai_socktype = SOCK_STREAM,
                    .ai_addrlen = sizeof(name_),
                    .ai_addr = reinterpret_cast<sockaddr*>(&name_)};
  std::vector<int> queued_;
};

Clock::Time In(milliseconds time) { return Clock::Real().Now() + time; }

TEST(RedisConnectTest, AnAddressThatSaysNothingLeavesTimeToTheNext) {
  Listener silent, next;
  silent.FallSilent();
  silent.address()->ai_next = next.address();
  const absl::StatusOr<int> fd = ConnectInTurn(silent.address(), In(seconds(2)));
  ASSERT_OK(fd);
  sockaddr_in peer{};
  socklen_t size = sizeof(peer);
  ASSERT_EQ(getpeername(*fd, reinterpret_cast<sockaddr*>(&peer), &size), 0);
  EXPECT_EQ(peer.sin_port, reinterpret_cast<const sockaddr_in*>(next.address()->ai_addr)->sin_port);
  close(*fd);
}

TEST(RedisConnectTest, AnAddressThatRejectsIsPassedOver) {
  Listener closed, next;
  closed.Close();
  closed.address()->ai_next = next.address();
  const absl::StatusOr<int> fd = ConnectInTurn(closed.address(), In(seconds(10)));
  ASSERT_OK(fd);
  close(*fd);
  EXPECT_EQ(ConnectInTurn(nullptr, In(seconds(10))).status().code(), absl::StatusCode::kUnavailable);
}

TEST(RedisConnectTest, WhereNobodyAnswersTheDeadlineHolds) {
  Listener one, two;
  one.FallSilent();
  two.FallSilent();
  one.address()->ai_next = two.address();
  EXPECT_EQ(ConnectInTurn(one.address(), In(milliseconds(200))).status().code(), absl::StatusCode::kDeadlineExceeded);
  two.Close();
  EXPECT_EQ(ConnectInTurn(one.address(), In(milliseconds(200))).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace routing_replay::server
