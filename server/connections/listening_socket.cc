#include "server/connections/listening_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

constexpr char kUnix[] = "unix:";

// ALREADY_EXISTS: another process has the address.
absl::Status Errno() {
  return absl::Status(errno == EADDRINUSE ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kUnavailable,
                      std::strerror(errno));
}

// Whether it is the socket of somebody who is gone, or went without a word; files of other kinds stay.
void RemoveSocket(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) unlink(path.c_str());
}

in_port_t& PortOf(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

absl::StatusOr<int> Bind(const sockaddr_storage& address, socklen_t size, bool both_families) {
  const int fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Errno();
  const int on = 1, only_v6 = both_families ? 0 : 1;
  if (address.ss_family != AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6));
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
  const absl::Status status = Errno();
  close(fd);
  return status;
}

}  // namespace

absl::StatusOr<ListeningSocket> ListeningSocket::Open(const std::string& address) {
  ListeningSocket socket;
  const bool local = absl::StartsWith(address, kUnix);
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[")) host = host.substr(1, host.size() - 2);
  absl::Status status =
      local ? socket.OpenUnix(address.substr(sizeof(kUnix) - 1)) : socket.OpenTcp(host, address.substr(colon + 1));
  for (const int fd : socket.fds_) {
    if (status.ok() && listen(fd, SOMAXCONN) != 0) status = Errno();
  }
  if (!status.ok()) return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", status.message()));
  if (local) {
    socket.address_ = address;
    return socket;
  }
  sockaddr_storage chosen{};
  socklen_t size = sizeof(chosen);
  getsockname(socket.fds_[0], reinterpret_cast<sockaddr*>(&chosen), &size);
  socket.address_ = absl::StrCat(address.substr(0, colon + 1), ntohs(PortOf(chosen)));
  return socket;
}

absl::Status ListeningSocket::OpenUnix(const std::string& path) {
  sockaddr_storage address{};
  auto& to = reinterpret_cast<sockaddr_un&>(address);
  if (path.size() >= sizeof(to.sun_path)) return absl::UnavailableError("the path is too long");
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.c_str(), path.size() + 1);
  RemoveSocket(path);
  auto fd = Bind(address, sizeof(sockaddr_un), false);
  if (!fd.ok()) return fd.status();
  fds_.push_back(*fd);
  path_ = path;
  // Whatever the umask says, and before anybody can connect.
  struct stat status;
  if (stat(path.c_str(), &status) == 0) chmod(path.c_str(), status.st_mode & ALLPERMS & ~S_IRWXO);
  return absl::OkStatus();
}

absl::Status ListeningSocket::OpenTcp(const std::string& host, const std::string& port) {
  const bool all = host == "0.0.0.0" || host == "::";
  const addrinfo hints{.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  absl::Status failure;
  in_port_t chosen = 0;
  for (const char* name : all ? std::vector<const char*>{"::", "0.0.0.0"} : std::vector<const char*>{host.c_str()}) {
    addrinfo* list = nullptr;
    if (const int error = getaddrinfo(name, port.c_str(), &hints, &list); error != 0) {
      failure.Update(absl::UnavailableError(gai_strerror(error)));
      continue;
    }
    const absl::Cleanup free_list = [list] { freeaddrinfo(list); };
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
      sockaddr_storage address{};
      std::memcpy(&address, at->ai_addr, at->ai_addrlen);
      if (PortOf(address) == 0) PortOf(address) = chosen;
      const auto fd = Bind(address, at->ai_addrlen, all);
      if (absl::IsAlreadyExists(fd.status()) && port != "0") return fd.status();
      failure.Update(fd.status());
      if (!fd.ok()) continue;
      fds_.push_back(*fd);
      sockaddr_storage got{};
      socklen_t size = sizeof(got);
      getsockname(*fd, reinterpret_cast<sockaddr*>(&got), &size);
      chosen = PortOf(got);
      if (all) return absl::OkStatus();
    }
  }
  return fds_.empty() ? failure : absl::OkStatus();
}

ListeningSocket::ListeningSocket(ListeningSocket&& other) noexcept
    : fds_(std::exchange(other.fds_, {})),
      address_(std::move(other.address_)),
      path_(std::exchange(other.path_, std::string())) {}

ListeningSocket::~ListeningSocket() {
  for (const int fd : fds_) close(fd);
  if (!path_.empty()) RemoveSocket(path_);
}

}  // namespace routing_replay::server
