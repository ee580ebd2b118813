#include "server/store/redis/client/redis_connect.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

constexpr int kKeepIdleSeconds = 30;
constexpr int kKeepIntervalSeconds = 10;
constexpr int kKeepProbes = 3;

void SetOption(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

void SetOptions(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
}

absl::Status FinishConnect(int fd, const RedisWait& wait) {
  pollfd socket{fd, POLLOUT, 0};
  if (auto status = WaitForSockets(absl::MakeSpan(&socket, 1), wait); !status.ok()) return status;
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? absl::OkStatus() : RedisConnectionGone(std::strerror(error));
}

// Connected and non-blocking.
absl::StatusOr<int> ConnectTo(const addrinfo& address, const RedisWait& wait) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return RedisConnectionGone(std::strerror(errno));
  absl::Cleanup close_fd = [fd] { close(fd); };
  SetOptions(fd);
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return RedisConnectionGone(std::strerror(errno));
    if (auto status = FinishConnect(fd, wait); !status.ok()) return status;
  }
  std::move(close_fd).Cancel();
  return fd;
}

int CountFrom(const addrinfo* first) {
  int count = 0;
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) ++count;
  return count;
}

}  // namespace

absl::Status RedisConnectionGone(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("Redis connection: ", what));
}

absl::StatusOr<RedisAddressList> ResolveRedisAddress(const RedisAddress& address) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) return RedisConnectionGone(gai_strerror(error));
  return RedisAddressList(found, freeaddrinfo);
}

absl::StatusOr<int> ConnectInTurn(const addrinfo* first, const RedisWait& wait) {
  absl::StatusOr<int> fd = RedisConnectionGone("the host has no address");
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    RedisWait part = wait;
    const Clock::Time now = wait.clock->Now();
    if (each->ai_next != nullptr && now < wait.deadline) part.deadline = now + (wait.deadline - now) / CountFrom(each);
    fd = ConnectTo(*each, part);
    if (fd.ok() || absl::IsCancelled(fd.status())) break;
    if (absl::IsDeadlineExceeded(fd.status()) && wait.clock->Now() >= wait.deadline) break;
  }
  return fd;
}

}  // namespace routing_replay::server
