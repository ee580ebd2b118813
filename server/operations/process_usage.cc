#include "server/operations/process_usage.h"

#include <dirent.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace routing_replay::server {
namespace {

double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "btime ")) return std::strtod(line.c_str() + 6, nullptr);
  }
  return 0;
}

// The fields of /proc/self/stat behind the program's name, which may hold anything: the first is number 3 of proc(5).
std::vector<std::string> StatFields() {
  std::ifstream file("/proc/self/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return absl::StrSplit(text.substr(text.rfind(')') + 1), ' ', absl::SkipEmpty());
}

int64_t OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return 0;
  int64_t open = -1;  // The folder's own.
  while (const dirent* entry = readdir(folder)) open += entry->d_name[0] != '.';
  closedir(folder);
  return open;
}

}  // namespace

ProcessUsage LookAtProcess() {
  ProcessUsage usage{.cpu_seconds = CpuSeconds()};
  const std::vector<std::string> fields = StatFields();
  const auto field = [&](size_t number) {
    return number - 3 < fields.size() ? std::strtoll(fields[number - 3].c_str(), nullptr, 10) : 0;
  };
  usage.threads = field(20);
  usage.start_time_seconds = BootTime() + static_cast<double>(field(22)) / static_cast<double>(sysconf(_SC_CLK_TCK));
  usage.virtual_bytes = field(23);
  usage.resident_bytes = field(24) * sysconf(_SC_PAGESIZE);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) usage.max_fds = static_cast<int64_t>(limit.rlim_cur);
  usage.open_fds = OpenDescriptors();
  return usage;
}

}  // namespace routing_replay::server
