#include "tests/bench/common/host.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::bench {
namespace {

constexpr char kCongestionControl[] = "/proc/sys/net/ipv4/tcp_congestion_control";

bool g_own_network = false;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

absl::Status BringLoopbackUp() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  bool up = fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags |= IFF_UP;
  up = up && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (up) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the new loopback interface stays down: ", std::strerror(error)));
}

}  // namespace

absl::Status EnterOwnNetwork() {
  if (unshare(CLONE_NEWNET) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("no network namespace: ", std::strerror(errno)));
  }
  if (absl::Status status = BringLoopbackUp(); !status.ok()) return status;
  std::ofstream(kCongestionControl) << "reno" << std::flush;
  g_own_network = true;
  return absl::OkStatus();
}

Host DescribeHost() {
  utsname names{};
  uname(&names);
  return {.cpu = CpuName(),
          .cores = static_cast<int>(std::thread::hardware_concurrency()),
          .kernel = names.release,
          .congestion_control = FirstLine(kCongestionControl),
          .own_network = g_own_network};
}

int64_t LoopbackBytes() {
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const size_t name = line.find("lo:");
    if (name == std::string::npos) continue;
    int64_t bytes = 0;
    std::istringstream(line.substr(name + 3)) >> bytes;
    return bytes;
  }
  return 0;
}

}  // namespace routing_replay::bench
