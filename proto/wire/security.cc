#include "proto/wire/security.h"
#include "proto/wire/status_macros.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay {
inline namespace wire {
namespace {

bool IsLoopbackHost(absl::string_view host) {
  if (absl::EqualsIgnoreCase(host, "localhost")) return true;
  const std::string text(host);
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

constexpr int64_t kMaxBytes = 1 << 20;
// File times advance in clock ticks, so a file that changed this recently may change again without a new time, and is
// read again.
constexpr std::chrono::nanoseconds kUnsettled = std::chrono::milliseconds(50);

int64_t Nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

std::array<int64_t, 5> StampOf(const struct stat& status) {
  return {static_cast<int64_t>(status.st_dev), static_cast<int64_t>(status.st_ino), status.st_size,
          Nanoseconds(status.st_mtim), Nanoseconds(status.st_ctim)};
}

absl::Status CannotRead(const std::string& path, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("cannot read ", path));
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path) {
  std::string text;
  char part[4096];
  for (ssize_t bytes; (bytes = read(fd, part, sizeof(part))) != 0;) {
    if (bytes < 0) return CannotRead(path, errno);
    text.append(part, static_cast<size_t>(bytes));
    if (static_cast<int64_t>(text.size()) > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": must have at most ", kMaxBytes, " bytes"));
    }
  }
  return text;
}

}  // namespace

bool IsLocalAddress(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) return true;
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return false;
  absl::string_view host = address.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) host = host.substr(1, host.size() - 2);
  return IsLoopbackHost(host);
}

absl::StatusOr<std::optional<std::string>> ChangingFile::Look() {
  struct stat status;
  const bool exists = stat(path_.c_str(), &status) == 0;
  const Stamp stamp = exists ? StampOf(status) : Stamp{};
  if (seen_ == stamp) return std::nullopt;
  seen_ = stamp;
  // O_NONBLOCK: opening a FIFO must not block the caller.
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return CannotRead(path_, errno);
  const absl::Cleanup close_file = [fd] { close(fd); };
  if (fstat(fd, &status) != 0) return CannotRead(path_, errno);
  seen_ = StampOf(status);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (Nanoseconds(now) - Nanoseconds(status.st_ctim) < kUnsettled.count()) seen_.reset();
  RR_ASSIGN_OR_RETURN(auto text, ReadAll(fd, path_));
  return std::optional<std::string>(std::move(text));
}

}  // namespace wire
}  // namespace routing_replay
