#include "proto/wire/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace routing_replay {
inline namespace wire {
namespace {

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
