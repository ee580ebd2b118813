#include "server/operations/status.h"

#include <dirent.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace routing_replay::server {
namespace {

constexpr int64_t kPage = 1000;
constexpr size_t kRunPage = 1000;

void Add(const SampleState& sample, Census::Run& run, Census& census) {
  ++run.looked_at;
  ++census.looked_at;
  census.oldest_idle_ms = std::max(census.oldest_idle_ms, sample.idle_ms);
  std::map<int64_t, int64_t> rows;
  for (const WeightSpan& span : sample.weights) rows[span.version] += span.rows.size();
  for (const auto& [version, count] : rows) {
    Census::Share& share = run.by_version[version];
    ++share.samples;
    share.rows += count;
    share.bytes += static_cast<int64_t>(static_cast<double>(sample.stored_bytes) * static_cast<double>(count) /
                                        static_cast<double>(sample.committed_rows));
  }
}

absl::Status LookAt(Store& store, Producer producer, int64_t limit, const std::function<bool()>& stop, Census::Run& run,
                    Census& census) {
  std::string token;
  do {
    if (stop()) return absl::CancelledError("the census was stopped");
    const int64_t size = std::min(kPage, limit - run.looked_at);
    if (size <= 0) break;
    const auto page = store.List(run.run, producer, std::nullopt, static_cast<int32_t>(size), token);
    if (absl::IsNotFound(page.status())) break;  // Dropped meanwhile.
    if (!page.ok()) return page.status();
    for (const SampleState& sample : page->samples) Add(sample, run, census);
    token = page->next_token;
  } while (!token.empty());
  return absl::OkStatus();
}

absl::Status LookAt(Store& store, const RunState& state, int64_t limit, const std::function<bool()>& stop,
                    Census& census) {
  Census::Run run{.run = state.info.run,
                  .samples = state.samples,
                  .sealed_samples = state.sealed_samples,
                  .committed_rows = state.committed_rows,
                  .stored_bytes = state.stored_bytes};
  for (const Producer producer : {Producer::kRollout, Producer::kTrainer}) {
    absl::Status status = LookAt(store, producer, limit, stop, run, census);
    if (!status.ok()) return status;
  }
  census.samples += run.samples;
  census.runs.push_back(std::move(run));
  return absl::OkStatus();
}

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

absl::StatusOr<Census> TakeCensus(Store& store, int64_t limit, const std::function<bool()>& stop) {
  const auto runs = store.CountRuns();
  if (!runs.ok()) return runs.status();
  Census census;
  const int64_t limit_of_run = std::max<int64_t>(1, limit / std::max<int64_t>(1, *runs));
  std::string token;
  do {
    const auto page = store.ListRuns(token, kRunPage);
    if (!page.ok()) return page.status();
    for (const RunState& state : page->runs) {
      absl::Status status = LookAt(store, state, limit_of_run, stop, census);
      if (!status.ok()) return status;
    }
    token = page->next_token;
  } while (!token.empty());
  return census;
}

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
