#include "tests/bench/common/process_usage.h"

#include <time.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::bench {
namespace {

std::vector<int64_t> Figures(absl::Span<const pid_t> pids, const std::string& name) {
  std::vector<int64_t> bytes;
  for (const pid_t pid : pids) {
    bytes.push_back(0);
    std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
    for (std::string line; std::getline(status, line);) {
      if (absl::StartsWith(line, name)) bytes.back() = std::atoll(line.c_str() + name.size()) * 1024;
    }
  }
  return bytes;
}

}  // namespace

double CpuSeconds(absl::Span<const pid_t> pids) {
  double seconds = 0;
  for (const pid_t pid : pids) {
    clockid_t clock;
    timespec time;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) continue;
    seconds += static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
  return seconds;
}

void ResetPeakMemory(absl::Span<const pid_t> pids) {
  for (const pid_t pid : pids) std::ofstream(absl::StrCat("/proc/", pid, "/clear_refs")) << "5" << std::flush;
}

std::vector<int64_t> ResidentBytes(absl::Span<const pid_t> pids) { return Figures(pids, "VmRSS:"); }
std::vector<int64_t> PeakBytes(absl::Span<const pid_t> pids) { return Figures(pids, "VmHWM:"); }

}  // namespace routing_replay::bench
