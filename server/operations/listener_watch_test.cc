#include "server/operations/listener_watch.h"

#include <arpa/inet.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "proto/wire/mutex.h"
#include "tests/support/status_matchers.h"
#include "tests/support/without_ipv6.h"

namespace routing_replay::server {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kPatience(200);

// A listener that takes connections, and ends them, only while it is told to.
class Listener {
 public:
  Listener() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)) {
    sockaddr_in at{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(fd_, 64), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
    thread_ = std::thread([this] {
      while (!stop_) {
        const int taken = taking_ ? accept(fd_, nullptr, nullptr) : -1;
        if (taken >= 0) close(taken);
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
  }
  ~Listener() {
    stop_ = true;
    thread_.join();
    close(fd_);
  }
  void Take(bool taking) { taking_ = taking; }
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
  std::atomic<bool> stop_{false}, taking_{true};
  std::thread thread_;
};

absl::Status Ask(const std::string& address, milliseconds patience) {
  const absl::StatusOr<ListenerAddress> found = ListenerAddress::Find(address);
  return found.ok() ? found->Ask(patience) : found.status();
}

TEST(ListenerWatchTest, AListenerAnswersIfItTakesConnections) {
  Listener listener;
  EXPECT_OK(Ask(listener.address(), std::chrono::seconds(30)));
  listener.Take(false);
  const absl::Status silent = Ask(listener.address(), kPatience);
  EXPECT_TRUE(absl::IsUnavailable(silent));
  EXPECT_THAT(silent.message(), ::testing::HasSubstr(listener.address()));
  EXPECT_TRUE(absl::IsUnavailable(Ask("127.0.0.1:1", kPatience)));
  EXPECT_TRUE(absl::IsUnavailable(Ask("unix:/does/not/exist", kPatience)));
}

TEST(ListenerWatchTest, OneOfEveryAddressAnswersWithoutIpv6) {
  Listener listener;
  const std::string port = listener.address().substr(listener.address().rfind(':'));
  const bool had =
      testing::RunWithoutIpv6([&] { EXPECT_OK(Ask(absl::StrCat("[::]", port), std::chrono::seconds(30))); });
  if (!had) GTEST_SKIP() << "no seccomp filter for a thread here";
}

// A restart would lose what is in memory, and a descriptor may come back.
TEST(ListenerWatchTest, WithoutADescriptorNothingIsKnown) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status unknown = Ask("unix:/somewhere", kPatience);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_TRUE(absl::IsResourceExhausted(unknown)) << unknown;
}

TEST(ListenerWatchTest, UnreadyFirstAndDeadAfterLong) {
  Listener listener;
  Mutex mutex;
  CondVar changed;
  std::vector<std::pair<bool, bool>> told;
  const ListenerWatch watch({.addresses = {listener.address()},
                             .interval = milliseconds(1),
                             .patience = kPatience,
                             .looks_until_unready = 2,
                             .looks_until_dead = 4},
                            [&](const ListenerWatch::Found& found) {
                              MutexLock lock(mutex);
                              const std::pair<bool, bool> now(found.answering.ok(), found.alive);
                              EXPECT_EQ(found.reachable, found.alive);
                              if (told.empty() || told.back() != now) told.push_back(now);
                              changed.NotifyAll();
                            });
  const auto await = [&](size_t changes) {
    MutexLock lock(mutex);
    while (told.size() < changes) changed.Wait(mutex);
  };
  await(1);
  listener.Take(false);
  await(3);
  listener.Take(true);
  await(4);
  MutexLock lock(mutex);
  EXPECT_THAT(told, ::testing::ElementsAre(std::pair(true, true), std::pair(false, true), std::pair(false, false),
                                           std::pair(true, true)));
}

// A restart would not find the name either, and lose what is in memory.
TEST(ListenerWatchTest, NamesThatAreNotFoundAreNoReasonToEnd) {
  EXPECT_TRUE(absl::IsUnknown(Ask("no-such-host.invalid:1", kPatience)));
  Mutex mutex;
  CondVar changed;
  int looks = 0;
  const ListenerWatch watch(
      {.addresses = {"no-such-host.invalid:1"}, .interval = milliseconds(1), .looks_until_dead = 2},
      [&](const ListenerWatch::Found& found) {
        MutexLock lock(mutex);
        EXPECT_TRUE(found.alive && found.reachable);
        ++looks;
        changed.NotifyAll();
      });
  MutexLock lock(mutex);
  while (looks < 5) changed.Wait(mutex);
}

TEST(ListenerWatchTest, OneThatAnswersIsReachable) {
  Listener listener;
  Mutex mutex;
  CondVar changed;
  std::optional<ListenerWatch::Found> dead;
  const ListenerWatch watch({.addresses = {listener.address(), "unix:/does/not/exist"},
                             .interval = milliseconds(1),
                             .patience = std::chrono::seconds(30),
                             .looks_until_dead = 4},
                            [&](const ListenerWatch::Found& found) {
                              MutexLock lock(mutex);
                              if (!found.alive) dead = found;
                              changed.NotifyAll();
                            });
  MutexLock lock(mutex);
  while (!dead) changed.Wait(mutex);
  EXPECT_TRUE(dead->reachable);
  EXPECT_FALSE(dead->answering.ok());
}

}  // namespace
}  // namespace routing_replay::server
