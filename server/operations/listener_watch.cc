#include "server/operations/listener_watch.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

absl::Status Silent(const std::string& address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("the listener ", address, " does not answer: ", why));
}

}  // namespace

absl::StatusOr<ListenerAddress> ListenerAddress::Find(const std::string& address) {
  ListenerAddress found;
  found.address_ = address;
  if (absl::StartsWith(address, "unix:")) {
    auto* to = reinterpret_cast<sockaddr_un*>(&found.storage_);
    const std::string path = address.substr(5);
    if (path.size() >= sizeof(to->sun_path)) return Silent(address, "the path is too long");
    to->sun_family = AF_UNIX;
    std::memcpy(to->sun_path, path.c_str(), path.size() + 1);
    found.size_ = sizeof(sockaddr_un);
    return found;
  }
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (absl::StartsWith(host, "[")) host = host.substr(1, host.size() - 2);
  if (host == "::") host = "127.0.0.1";  // Where it answers also if the machine has no IPv6.
  const addrinfo hints{.ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &list);
  if (error != 0) {
    return absl::UnknownError(absl::StrCat("the listener ", address, " cannot be asked: ", gai_strerror(error)));
  }
  const absl::Cleanup free_list = [list] { freeaddrinfo(list); };
  std::memcpy(&found.storage_, list->ai_addr, list->ai_addrlen);
  found.size_ = list->ai_addrlen;
  return found;
}

absl::Status ListenerAddress::Ask(std::chrono::milliseconds patience) const {
  const int fd = socket(storage_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ResourceExhaustedError(absl::StrCat("no socket is to be had: ", std::strerror(errno)));
  const absl::Cleanup close_socket = [fd] { close(fd); };
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const auto wait_for = [&](int16_t event) {
    pollfd wanted{.fd = fd, .events = event};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    return poll(&wanted, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) == 1;
  };
  if (connect(fd, reinterpret_cast<const sockaddr*>(&storage_), size_) != 0) {
    if (errno != EINPROGRESS) return Silent(address_, std::strerror(errno));
    if (!wait_for(POLLOUT)) return Silent(address_, "no connection in time");
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Silent(address_, std::strerror(error));
  }
  shutdown(fd, SHUT_WR);
  return wait_for(POLLIN) ? absl::OkStatus() : Silent(address_, "connections are not taken");
}

ListenerWatch::ListenerWatch(Options options, Told told)
    : options_(std::move(options)), told_(std::move(told)), thread_([this] { return Look(); }) {}

absl::Status ListenerWatch::Ask(const std::string& address) {
  auto found = found_.find(address);
  if (found == found_.end()) {
    absl::StatusOr<ListenerAddress> now = ListenerAddress::Find(address);
    if (!now.ok()) return now.status();
    found = found_.emplace(address, *std::move(now)).first;
  }
  return found->second.Ask(options_.patience);
}

std::chrono::milliseconds ListenerWatch::Look() {
  absl::Status answering;
  bool some = options_.addresses.empty(), all_asked = true;
  for (const std::string& address : options_.addresses) {
    const absl::Status asked = Ask(address);
    some |= asked.ok();
    all_asked &= asked.ok() || absl::IsUnavailable(asked);
    answering.Update(asked);
  }
  failed_looks_ = answering.ok() ? 0 : failed_looks_ + 1;
  if (all_asked) {
    silent_looks_ = answering.ok() ? 0 : silent_looks_ + 1;
    all_silent_looks_ = some ? 0 : all_silent_looks_ + 1;
  }
  told_({.answering = failed_looks_ < options_.looks_until_unready ? absl::OkStatus() : answering,
         .alive = silent_looks_ < options_.looks_until_dead,
         .reachable = all_silent_looks_ < options_.looks_until_dead});
  return options_.interval;
}

}  // namespace routing_replay::server
