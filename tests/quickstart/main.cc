// cpp_quickstart: one hand-off on this machine from rollout workers to trainer ranks, with a check of every id.
//
// Each worker and rank is a process, and so is the server. Expected rows come from the generator (or the trace files)
// and from tests/reference, never from what was sent.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/quickstart/phase_gate.h"
#include "tests/quickstart/rank.h"
#include "tests/quickstart/report.h"
#include "tests/quickstart/scenario.h"
#include "tests/quickstart/server_process.h"
#include "tests/quickstart/worker.h"

namespace routing_replay::quickstart {
namespace {

using Plays = std::vector<Play>;

struct Options {
  std::string server;
  std::string trace;
  std::string json;
};

// The directory and its contents are removed in the destructor.
class ScopedDirectory {
 public:
  static absl::StatusOr<std::unique_ptr<ScopedDirectory>> Create() {
    std::string path = (std::filesystem::temp_directory_path() / "routing-replay-quickstart.XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) return absl::InternalError(absl::StrCat("cannot make ", path));
    return std::unique_ptr<ScopedDirectory>(new ScopedDirectory(std::move(path)));
  }
  ~ScopedDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScopedDirectory(const ScopedDirectory&) = delete;
  ScopedDirectory& operator=(const ScopedDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit ScopedDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Starts one child process per index below `count`.
absl::StatusOr<Children> StartChildren(const std::string& role, int32_t count,
                                       const std::function<absl::Status(int32_t)>& run) {
  Children children;
  std::cout.flush();
  for (int32_t i = 0; i < count; ++i) {
    const std::string name = absl::StrCat(role, " ", i);
    absl::StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::Fork(name, [&] {
      const absl::Status status = run(i);
      if (!status.ok()) std::cerr << name << ": " << status << std::endl;
      return status.ok() ? 0 : 1;
    });
    if (!child.ok()) return child.status();
    children.push_back(*std::move(child));
  }
  return children;
}

// Runs the named phases, each of which is a hop of the table, and returns the children's results.
absl::StatusOr<std::vector<nlohmann::json>> RunHops(const Children& children,
                                                    const std::vector<std::pair<std::string, std::string>>& phases,
                                                    Report& report) {
  if (absl::Status status = AwaitPhase(children, "ready"); !status.ok()) return status;
  for (const auto& [phase, hop] : phases) {
    const absl::StatusOr<std::chrono::nanoseconds> time = RunPhase(children, phase);
    if (!time.ok()) return time.status();
    report.hops.push_back({phase, hop, *time});
  }
  return CollectResults(children);
}

absl::Status RunWorkers(const Plays& plays, const std::string& endpoint, Report& report) {
  const absl::StatusOr<Children> workers =
      StartChildren("worker", kWorkers, [&](int32_t worker) { return RunWorker(plays, endpoint, worker); });
  if (!workers.ok()) return workers.status();
  const auto results = RunHops(*workers, {{"appended", "engine arrays -> server, acknowledged"}}, report);
  if (!results.ok()) return results.status();
  for (const nlohmann::json& result : *results) {
    if (absl::Status status = AddWorker(result, report); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RunRanks(const Plays& plays, const std::string& endpoint, Report& report) {
  const absl::StatusOr<Children> ranks =
      StartChildren("rank", kRanks, [&](int32_t rank) { return RunRank(plays, endpoint, rank); });
  if (!ranks.ok()) return ranks.status();
  const auto results = RunHops(*ranks,
                               {{"fetched", "server -> staging of the ranks"},
                                {"realigned", "staging -> index buffers"},
                                {"checked", "check of every id, and of routing maps"}},
                               report);
  if (!results.ok()) return results.status();
  for (const nlohmann::json& result : *results) {
    if (absl::Status status = AddRank(result, report); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  const absl::StatusOr<Plays> made = MakeScenario(options.trace);
  if (!made.ok()) return made.status();
  const Plays& plays = *made;
  const absl::StatusOr<std::unique_ptr<ScopedDirectory>> directory = ScopedDirectory::Create();
  if (!directory.ok()) return directory.status();
  absl::StatusOr<ServerProcess> server = StartServer(options.server, (*directory)->path());
  if (!server.ok()) return server.status();
  std::cout << "1 server at " << server->endpoint << ", " << kWorkers << " rollout workers, " << kRanks
            << " trainer ranks (" << kLayoutDescription << ")\n"
            << std::flush;
  Report report;
  for (const Play& play : plays) {
    report.runs.push_back(absl::StrCat(play.description, ": ", play.geometry.DebugString()));
    for (const SamplePlan& sample : play.samples) {
      report.expected_ids += sample.recorded_rows() * play.geometry.ids_per_row();
    }
  }
  if (absl::Status status = RunWorkers(plays, server->endpoint, report); !status.ok()) return status;
  if (absl::Status status = RunRanks(plays, server->endpoint, report); !status.ok()) return status;
  if (absl::Status status = StopServer(*server); !status.ok()) return status;
  std::cout << ReportTable(report);
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << ReportJson(report).dump(2) << "\n";
    if (!file.flush()) return absl::InternalError(absl::StrCat(options.json, " cannot be written"));
  }
  if (absl::Status status = CheckComplete(report); !status.ok()) return status;
  std::cout << report.out.compared_ids << " expert ids compared, all matched\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace routing_replay::quickstart

int main(int argc, char** argv) {
  routing_replay::quickstart::Options options;
  CLI::App app("Plays one hand-off of routing rows on this machine and checks every expert id");
  app.add_option("--server", options.server, "Path of routing-replay-server")->required();
  app.add_option("--trace", options.trace, "Directory of recorded traces instead of synthetic rows");
  app.add_option("--json", options.json, "Also write the table to this file, as JSON");
  CLI11_PARSE(app, argc, argv);
  signal(SIGPIPE, SIG_IGN);
  const absl::Status status = routing_replay::quickstart::Run(options);
  if (status.ok()) return 0;
  std::cerr << "quickstart: " << status << "\n";
  return 1;
}
