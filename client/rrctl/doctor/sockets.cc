#include "client/rrctl/doctor/sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace routing_replay::client {
namespace {

absl::StatusOr<std::vector<SocketAddress>> UnixAddress(const std::string& path) {
  SocketAddress address{.size = sizeof(sockaddr_un), .text = absl::StrCat("unix:", path)};
  auto* socket = reinterpret_cast<sockaddr_un*>(&address.bytes);
  if (path.size() >= sizeof(socket->sun_path)) return absl::InvalidArgumentError("the path of the socket is too long");
  socket->sun_family = AF_UNIX;
  std::memcpy(socket->sun_path, path.data(), path.size());
  return std::vector<SocketAddress>{std::move(address)};
}

std::string Text(const addrinfo& info, const std::string& port) {
  char host[NI_MAXHOST] = "?";
  getnameinfo(info.ai_addr, info.ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return info.ai_family == AF_INET6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::Status Failure(int error, const std::string& address) {
  const std::string message = absl::StrCat(address, ": ", std::strerror(error));
  return error == ETIMEDOUT ? absl::DeadlineExceededError(message) : absl::UnavailableError(message);
}

void SetTimeout(int descriptor, std::chrono::milliseconds timeout) {
  const timeval time{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
}

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> Resolve(const ServerAddress& server) {
  if (!server.unix_path.empty()) return UnixAddress(server.unix_path);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(server.host.c_str(), server.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::NotFoundError(error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* info = found; info != nullptr; info = info->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.bytes, info->ai_addr, info->ai_addrlen);
    address.size = info->ai_addrlen;
    address.text = Text(*info, server.port);
  }
  freeaddrinfo(found);
  return addresses;
}

absl::StatusOr<Socket> ConnectTo(const SocketAddress& address, std::chrono::milliseconds timeout) {
  Socket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.descriptor() < 0) return Failure(errno, address.text);
  if (connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address.bytes), address.size) != 0) {
    if (errno != EINPROGRESS) return Failure(errno, address.text);
    pollfd writable{.fd = socket.descriptor(), .events = POLLOUT, .revents = 0};
    if (poll(&writable, 1, static_cast<int>(timeout.count())) != 1) return Failure(ETIMEDOUT, address.text);
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Failure(error, address.text);
  }
  fcntl(socket.descriptor(), F_SETFL, fcntl(socket.descriptor(), F_GETFL) & ~O_NONBLOCK);
  SetTimeout(socket.descriptor(), timeout);
  return socket;
}

}  // namespace routing_replay::client
