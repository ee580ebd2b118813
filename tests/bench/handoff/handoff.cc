#include "tests/bench/handoff/handoff.h"

#include <unistd.h>

#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/bench/common/host.h"
#include "tests/bench/common/process_usage.h"
#include "tests/bench/common/processes.h"
#include "tests/bench/handoff/hub.h"
#include "tests/bench/handoff/python_ends.h"
#include "tests/bench/handoff/rank.h"
#include "tests/bench/handoff/rounds.h"
#include "tests/bench/handoff/scenario.h"
#include "tests/bench/handoff/worker.h"

namespace routing_replay::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int32_t kQuickSamples = 4;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A way is one path of the rows through a transport; a round plays each.
struct Way {
  const char* name;       // Part of the figures' names; empty for plain TCP, the floor.
  const char* dtype;      // The element type in the workers' arrays, and the command for it.
  const char* transport;  // One of kTransports.
  const char* cpp = "";   // For Python at both ends: the C++ way to compare with.

  bool tcp() const { return *name == '\0'; }
  bool in_python() const { return *cpp != '\0'; }
};

constexpr Way kWays[] = {{"", "", ""},
                         {"u8", "u8", "direct"},
                         {"u8.unix", "u8", "unix"},
                         {"u8.shm", "u8", "shm"},
                         {"u8.grpc", "u8", "grpc"},
                         {"i32", "i32", "direct"},
                         {"i32.shm", "i32", "shm"},
                         {"i32.grpc", "i32", "grpc"},
                         {"python.u8", "u8", "direct", "u8"},
                         {"python.u8.shm", "u8", "shm", "u8.shm"},
                         {"python.u8.grpc", "u8", "grpc", "u8.grpc"},
                         {"python.i32", "i32", "direct", "i32"},
                         {"python.i32.shm", "i32", "shm", "i32.shm"},
                         {"python.i32.grpc", "i32", "grpc", "i32.grpc"}};

// All processes of the hand-off with one allocator setting.
class Handoff {
 public:
  Handoff(const BenchOptions& options, Tuning tuning)
      : server_program_(options.server),
        python_(options.python),
        tuning_(tuning),
        scenario_(options.quick ? kQuickSamples : kStandardSamples) {}

  absl::Status Start();
  absl::StatusOr<Round> Play(const Way& way);

 private:
  absl::Status StartProcesses();
  absl::Status Connect();
  absl::Status CheckDigests(const Way& way);
  std::vector<pid_t> Pids(const Way& way);

  Team& workers(const Way& way) { return way.in_python() ? python_ends_->workers : *workers_; }
  Team& ranks(const Way& way) { return way.in_python() ? python_ends_->ranks : *ranks_; }

  const std::string server_program_, python_;
  const Tuning tuning_;
  const HandoffScenario scenario_;
  quickstart::ServerProcess server_;
  std::optional<Team> hub_, workers_, ranks_;
  std::optional<PythonEnds> python_ends_;
  std::vector<std::string> digests_;  // Per rank: digest of its expected array.
  int64_t service_rounds_ = 0;
};

absl::Status Handoff::Start() {
  const absl::Status started = StartProcesses();
  return started.ok() ? Connect() : started;
}

absl::Status Handoff::StartProcesses() {
  auto server = StartServer(server_program_);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  const auto start = [&](const std::string& name, int count, const MakeRole& make, std::optional<Team>& team) {
    auto started = StartTeam(name, count, tuning_.clients, make);
    if (!started.ok()) return started.status();
    team = *std::move(started);
    return absl::OkStatus();
  };
  absl::Status status = start(
      "hub", 1, [&](int) { return MakeHandoffHub(scenario_); }, hub_);
  status.Update(start(
      "worker", kWorkers, [&](int i) { return MakeWorker(scenario_, i); }, workers_));
  status.Update(start(
      "rank", kRanks, [&](int i) { return MakeRank(scenario_, i); }, ranks_));
  if (!status.ok() || python_.empty()) return status;
  auto python_ends = StartPythonEnds(python_, scenario_, tuning_.clients);
  if (!python_ends.ok()) return python_ends.status();
  python_ends_ = *std::move(python_ends);
  return absl::OkStatus();
}

absl::Status Handoff::Connect() {
  const auto hello = hub_->Call("hello");
  if (!hello.ok()) return hello.status();
  std::vector<std::string> words = absl::StrSplit(hello->front(), ' ');
  const std::string open = absl::StrCat("open ", server_.endpoint, " ", words.front());
  digests_.assign(words.begin() + 1, words.end());
  std::vector<Team*> teams{&*workers_, &*ranks_};  // The workers come first because they open the run.
  if (python_ends_) teams.insert(teams.end(), {&python_ends_->workers, &python_ends_->ranks});
  for (Team* team : teams) {
    if (const auto opened = team->Call(open); !opened.ok()) return opened.status();
  }
  return absl::OkStatus();
}

std::vector<pid_t> Handoff::Pids(const Way& way) {
  std::vector<pid_t> pids{getpid(), way.tcp() ? hub_->pids()[0] : server_.process->pid()};
  for (const Team* team : {&workers(way), &ranks(way)})
    pids.insert(pids.end(), team->pids().begin(), team->pids().end());
  return pids;
}

absl::Status Handoff::CheckDigests(const Way& way) {
  const auto digests = ranks(way).Call(way.tcp() ? "digest hub" : "digest service");
  if (!digests.ok()) return digests.status();
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    if ((*digests)[rank] == digests_[rank]) continue;
    return absl::DataLossError(absl::StrCat("rank ", rank, " holds wrong ids"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Round> Handoff::Play(const Way& way) {
  if (const auto poisoned = ranks(way).Call("poison"); !poisoned.ok()) return poisoned.status();
  if (!way.tcp()) ++service_rounds_;
  const std::string how = absl::StrCat(" ", service_rounds_, " ", way.transport);
  const std::string put = way.tcp() ? "hub" : absl::StrCat(way.dtype, how);
  const std::string get = way.tcp() ? "hub" : absl::StrCat("service", how);
  const std::vector<pid_t> pids = Pids(way);
  ResetPeakMemory(pids);
  const std::vector<int64_t> memory = ResidentBytes(pids);
  const double cpu = CpuSeconds(pids);
  const int64_t network = LoopbackBytes();

  Round round;
  const Clock::time_point start = Clock::now();
  if (const auto in = workers(way).Call(put); !in.ok()) return in.status();
  round.ingest_s = SecondsSince(start);
  if (const auto out = ranks(way).Call(get); !out.ok()) return out.status();
  round.fetch_s = SecondsSince(start) - round.ingest_s;

  round.cpu_s = CpuSeconds(pids) - cpu;
  const double needed = 2.0 * static_cast<double>(scenario_.ids());
  if (DescribeHost().own_network) round.moved = static_cast<double>(LoopbackBytes() - network) / needed;
  const std::vector<int64_t> peak = PeakBytes(pids);
  for (size_t i = 0; i < pids.size(); ++i) round.peak_mb += 1e-6 * static_cast<double>(peak[i] - memory[i]);
  if (absl::Status status = CheckDigests(way); !status.ok()) return status;
  return round;
}

// The rounds of each way under one allocator setting, by the way's name.
using Rounds = std::map<std::string, std::vector<Round>>;

absl::Status PlayAll(Handoff& handoff, bool python, bool counts, Rounds& rounds) {
  for (const Way& way : kWays) {
    if (way.in_python() && !python) continue;
    const absl::StatusOr<Round> round = handoff.Play(way);
    if (!round.ok()) return round.status();
    if (counts) rounds[way.name].push_back(*round);
  }
  return absl::OkStatus();
}

void AddFigures(std::vector<Figure>& figures, std::vector<Figure> more) {
  figures.insert(figures.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchHandoff(const BenchOptions& options) {
  std::vector<std::pair<std::unique_ptr<Handoff>, Rounds>> settings;
  settings.emplace_back(std::make_unique<Handoff>(options, options.tuning), Rounds{});
  if (options.beside_untuned) settings.emplace_back(std::make_unique<Handoff>(options, kUntuned), Rounds{});
  for (auto& [handoff, rounds] : settings) {
    if (absl::Status status = handoff->Start(); !status.ok()) return status;
  }
  for (int i = -kWarmUpRounds; i < options.rounds(); ++i) {
    for (auto& [handoff, rounds] : settings) {
      if (absl::Status status = PlayAll(*handoff, !options.python.empty(), i >= 0, rounds); !status.ok()) return status;
    }
  }
  std::vector<Figure> figures;
  for (size_t i = 0; i < settings.size(); ++i) {
    const char* const of = i == 0 ? "" : ".untuned";
    Rounds& rounds = settings[i].second;
    for (const Way& way : kWays) {
      if (way.tcp() || rounds.count(way.name) == 0) continue;
      const std::string name = absl::StrCat("handoff.", way.name, of);
      const std::vector<Round>& played = rounds[way.name];
      if (way.in_python()) {
        AddFigures(figures, HandoffFigures(name, played, "C++", rounds[way.cpp]));
      } else if (i == 0) {
        AddFigures(figures, HandoffFigures(name, played, "tcp", rounds[""]));
      } else {
        AddFigures(figures, HandoffFigures(name, played, "tuned", settings[0].second[way.name]));
      }
    }
  }
  return figures;
}

}  // namespace routing_replay::bench
