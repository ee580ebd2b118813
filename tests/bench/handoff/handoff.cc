#include "tests/bench/handoff/handoff.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "deploy/quickstart/server_process.h"
#include "routing_replay/wire/allocator.h"
#include "tests/bench/common/host.h"
#include "tests/bench/common/process_usage.h"
#include "tests/bench/common/team.h"
#include "tests/bench/handoff/rank.h"
#include "tests/bench/handoff/rounds.h"
#include "tests/bench/handoff/scenario.h"
#include "tests/bench/handoff/tcp_hub.h"
#include "tests/bench/handoff/worker.h"

namespace routing_replay::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kQuickSamples = 4;
constexpr int kQuickRounds = 1;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

enum class Way { kTcp, kU8, kI32 };

class Handoff {
 public:
  explicit Handoff(const BenchOptions& options)
      : options_(options), scenario_(options.quick ? kQuickSamples : kStandardSamples) {}

  absl::Status Start();
  absl::StatusOr<Round> Play(Way way);

 private:
  absl::StatusOr<Team> StartTeam(const std::string& name, int count, const MakeRole& make) const;
  absl::Status StartServer();
  absl::Status CheckDigests(Way way);
  std::vector<pid_t> Pids(Way way) const;

  const BenchOptions options_;
  const HandoffScenario scenario_;
  quickstart::ServerProcess server_;
  std::optional<Team> hub_, workers_, ranks_;
  std::vector<std::string> digests_;  // Per rank, of its expected array.
  int64_t service_rounds_ = 0;
};

absl::StatusOr<Team> Handoff::StartTeam(const std::string& name, int count, const MakeRole& make) const {
  return Team::Start(name, count, [&](int i) {
    if (options_.tune_clients) TuneAllocator();
    return make(i);
  });
}

absl::Status Handoff::StartServer() {
  std::string directory = (std::filesystem::temp_directory_path() / "routing-replay-bench.XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return absl::InternalError(absl::StrCat("cannot make ", directory));
  auto server =
      quickstart::StartServer(options_.server, directory,
                              {"--allocator", options_.tune_server ? "tuned" : "default", "--log-level", "warning"});
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  return absl::OkStatus();
}

absl::Status Handoff::Start() {
  if (absl::Status status = StartServer(); !status.ok()) return status;
  auto hub = StartTeam("hub", 1, [&](int) { return MakeTcpHub(scenario_); });
  if (!hub.ok()) return hub.status();
  hub_ = *std::move(hub);
  auto workers = StartTeam("worker", kWorkers, [&](int i) { return MakeWorker(scenario_, i); });
  if (!workers.ok()) return workers.status();
  workers_ = *std::move(workers);
  auto ranks = StartTeam("rank", kRanks, [&](int i) { return MakeRank(scenario_, i); });
  if (!ranks.ok()) return ranks.status();
  ranks_ = *std::move(ranks);
  const auto hello = hub_->Call("hello");
  if (!hello.ok()) return hello.status();
  std::vector<std::string> words = absl::StrSplit(hello->front(), ' ');
  const std::string open = absl::StrCat("open ", server_.endpoint, " ", words.front());
  digests_.assign(words.begin() + 1, words.end());
  for (Team* team : {&*workers_, &*ranks_}) {  // Workers first: they open the run.
    if (const auto opened = team->Call(open); !opened.ok()) return opened.status();
  }
  return absl::OkStatus();
}

std::vector<pid_t> Handoff::Pids(Way way) const {
  std::vector<pid_t> pids{getpid(), way == Way::kTcp ? hub_->pids()[0] : server_.process->pid()};
  for (const Team* team : {&*workers_, &*ranks_}) pids.insert(pids.end(), team->pids().begin(), team->pids().end());
  return pids;
}

absl::Status Handoff::CheckDigests(Way way) {
  const auto digests = ranks_->Call(way == Way::kTcp ? "digest hub" : "digest service");
  if (!digests.ok()) return digests.status();
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    if ((*digests)[rank] == digests_[rank]) continue;
    return absl::DataLossError(absl::StrCat("rank ", rank, " holds other ids than it should"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Round> Handoff::Play(Way way) {
  if (const auto poisoned = ranks_->Call("poison"); !poisoned.ok()) return poisoned.status();
  if (way != Way::kTcp) ++service_rounds_;
  const std::string put = way == Way::kTcp  ? "hub"
                          : way == Way::kU8 ? absl::StrCat("u8 ", service_rounds_)
                                            : absl::StrCat("i32 ", service_rounds_);
  const std::string get = way == Way::kTcp ? "hub" : absl::StrCat("service ", service_rounds_);
  const std::vector<pid_t> pids = Pids(way);
  ResetPeakMemory(pids);
  const std::vector<int64_t> memory = ResidentBytes(pids);
  const double cpu = CpuSeconds(pids);
  const int64_t network = LoopbackBytes();

  Round round;
  const Clock::time_point start = Clock::now();
  if (const auto in = workers_->Call(put); !in.ok()) return in.status();
  round.ingest_s = SecondsSince(start);
  if (const auto out = ranks_->Call(get); !out.ok()) return out.status();
  round.fetch_s = SecondsSince(start) - round.ingest_s;

  round.cpu_s = CpuSeconds(pids) - cpu;
  const double needed = 2.0 * static_cast<double>(scenario_.ids());
  if (DescribeHost().own_network) round.moved = static_cast<double>(LoopbackBytes() - network) / needed;
  const std::vector<int64_t> peak = PeakBytes(pids);
  for (size_t i = 0; i < pids.size(); ++i) round.peak_mb += 1e-6 * static_cast<double>(peak[i] - memory[i]);
  if (absl::Status status = CheckDigests(way); !status.ok()) return status;
  return round;
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchHandoff(const BenchOptions& options) {
  Handoff handoff(options);
  if (absl::Status status = handoff.Start(); !status.ok()) return status;
  const int rounds = options.quick ? kQuickRounds : options.repetitions;
  std::vector<Round> tcp, u8, i32;
  const std::pair<Way, std::vector<Round>*> ways[] = {{Way::kTcp, &tcp}, {Way::kU8, &u8}, {Way::kI32, &i32}};
  for (int i = -kWarmUpRounds; i < rounds; ++i) {
    for (const auto& [way, results] : ways) {
      const absl::StatusOr<Round> round = handoff.Play(way);
      if (!round.ok()) return round.status();
      if (i >= 0) results->push_back(*round);
    }
  }
  std::vector<Figure> figures = HandoffFigures("handoff.u8", u8, tcp);
  const std::vector<Figure> from_i32 = HandoffFigures("handoff.i32", i32, tcp);
  figures.insert(figures.end(), from_i32.begin(), from_i32.end());
  return figures;
}

}  // namespace routing_replay::bench
