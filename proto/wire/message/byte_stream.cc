#include "proto/wire/message/byte_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>

namespace routing_replay {
inline namespace wire {
namespace {

msghdr MessageOf(absl::Span<const iovec> pieces) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = std::min<size_t>(pieces.size(), IOV_MAX);
  return message;
}

// Converts the result of a send or receive call.
absl::StatusOr<size_t> Moved(ssize_t bytes) {
  if (bytes >= 0) return static_cast<size_t>(bytes);
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
  return absl::UnavailableError(std::strerror(errno));
}

// A read into less space than this also reads ahead, up to this many bytes.
constexpr size_t kSmallRead = 16 << 10;

void Set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

bool IsLoopback(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
  if (peer.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(peer).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (peer.ss_family != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET);
}

}  // namespace

int MsUntil(Clock::Time deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::Real().Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, INT_MAX));
}

short PollBy(int fd, short events, Clock::Time deadline) {
  pollfd wait{.fd = fd, .events = events, .revents = 0};
  while (poll(&wait, 1, MsUntil(deadline)) < 0 && errno == EINTR) continue;
  return wait.revents;
}

absl::StatusOr<size_t> ByteStream::ReadBy(absl::Span<const iovec> space, Clock::Time deadline) {
  auto bytes = Read(space);
  if (!bytes.ok() || *bytes > 0) return bytes;
  Wait(read_events(), deadline);
  return Read(space);
}

void ByteStream::Wait(uint32_t events, Clock::Time deadline) const {
  PollBy(fd(), static_cast<short>(events), deadline);
}

void ByteStream::EndWrites() { shutdown(fd(), SHUT_WR); }

void ByteStream::Break() { shutdown(fd(), SHUT_RDWR); }

SocketStream::~SocketStream() { close(fd_); }

absl::StatusOr<size_t> SocketStream::Receive(absl::Span<const iovec> space, int flags) {
  if (HasBytes()) {
    const auto& [into, room] = space.front();
    const size_t bytes = std::min(room, ahead_.size() - next_);
    std::memcpy(into, ahead_.data() + next_, bytes);
    next_ += bytes;
    if (!HasBytes()) ahead_ = {};
    return bytes;
  }
  const size_t wanted = space.size() == 1 ? space.front().iov_len : SIZE_MAX;
  const bool small = wanted < kSmallRead;
  std::array<uint8_t, kSmallRead> more;
  const std::array<iovec, 2> with_more = {{space.front(), {more.data(), more.size()}}};
  msghdr message = MessageOf(small ? absl::MakeConstSpan(with_more) : space);
  const ssize_t bytes = recvmsg(fd_, &message, small ? flags & ~MSG_WAITALL : flags);
  if (bytes == 0) return absl::UnavailableError("the peer closed the connection");
  if (bytes < 0 || static_cast<size_t>(bytes) <= wanted) return Moved(bytes);
  ahead_.assign(more.data(), more.data() + bytes - wanted);
  next_ = 0;
  return wanted;
}

absl::StatusOr<size_t> SocketStream::Read(absl::Span<const iovec> space) { return Receive(space, MSG_DONTWAIT); }

absl::StatusOr<size_t> SocketStream::Write(absl::Span<const iovec> bytes) {
  const msghdr message = MessageOf(bytes);
  return Moved(sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

// Waits and receives in one system call, so the deadline is set as the socket's receive timeout.
absl::StatusOr<size_t> SocketStream::ReadBy(absl::Span<const iovec> space, Clock::Time deadline) {
  const int left = MsUntil(deadline);
  if (left == 0) return 0;
  if (patience_ms_ > left || patience_ms_ <= left / 2) {
    patience_ms_ = left;
    const timeval patience{.tv_sec = left / 1000, .tv_usec = (left % 1000) * 1000};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  return Receive(space, MSG_WAITALL);
}

void PrepareTcp(int fd) {
  constexpr int kIdleSeconds = 20, kProbeSeconds = 5, kProbes = 4;
  constexpr char kReno[] = "reno";  // Available on every Linux system, to every user.
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  if (IsLoopback(fd)) setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno, sizeof(kReno) - 1);
}

void PrepareUnix(int fd) { Set(fd, SOL_SOCKET, SO_SNDBUF, 4 << 20); }

}  // namespace wire
}  // namespace routing_replay
