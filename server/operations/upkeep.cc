#include "server/operations/upkeep.h"

#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <utility>

namespace routing_replay::server {
namespace {

constexpr std::chrono::milliseconds kInterval(1000);
constexpr int64_t kWorthIt = int64_t{32} << 20;

// Of this process; 0 where the system does not say.
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return file ? resident * sysconf(_SC_PAGESIZE) : 0;
}

// Of all threads.
std::chrono::nanoseconds CpuTime() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

bool MemoryTrim::Look(int64_t resident, int64_t accounted, bool idle) {
  if (left_ && resident < *left_) left_ = resident;
  const bool far_above = resident > accounted + accounted / 4 + kSlack;
  return idle && far_above && (!left_ || resident - *left_ > kWorthIt);
}

std::unique_ptr<PeriodicThread> StartMemoryTrim(std::function<int64_t()> accounted) {
  return std::make_unique<PeriodicThread>(
      [trim = MemoryTrim(), accounted = std::move(accounted), before = CpuTime()]() mutable {
        const std::chrono::nanoseconds now = CpuTime();
        const bool idle = now - std::exchange(before, now) < kInterval / 5;
        if (trim.Look(ResidentBytes(), accounted(), idle)) {
          malloc_trim(0);
          trim.Trimmed(ResidentBytes());
        }
        return kInterval;
      });
}

}  // namespace routing_replay::server
