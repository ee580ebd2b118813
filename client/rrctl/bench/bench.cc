#include "client/rrctl/bench/bench.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/rrctl/bench/figures.h"
#include "client/rrctl/bench/load.h"
#include "client/rrctl/bench/phase.h"
#include "proto/json/geometry_json.h"
#include "proto/wire/human.h"

namespace routing_replay::client {
namespace {

constexpr std::chrono::milliseconds kPoll(20);
constexpr int64_t kMaxSampleIds = int64_t{1} << 27;
// Samples that a killed bench leaves go away by themselves.
constexpr std::chrono::minutes kTtl(10);

struct Percentile {
  const char* name;
  double fraction;
};
constexpr Percentile kPercentiles[] = {{"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}};

// What one kind of call did in all rounds.
struct Measured {
  std::vector<double> bytes_per_s, rows_per_s, latencies;
  std::array<std::vector<double>, std::size(kPercentiles)> percentiles;

  void Add(const PhaseResult& phase, int64_t rows, int64_t row_bytes) {
    if (phase.latencies.empty() || phase.seconds <= 0) return;
    rows_per_s.push_back(static_cast<double>(rows * phase.latencies.size()) / phase.seconds);
    bytes_per_s.push_back(rows_per_s.back() * static_cast<double>(row_bytes));
    latencies.insert(latencies.end(), phase.latencies.begin(), phase.latencies.end());
    for (size_t i = 0; i < percentiles.size(); ++i) {
      percentiles[i].push_back(Quantile(phase.latencies, kPercentiles[i].fraction));
    }
  }

  void AddTo(Document& figures, const std::string& name) const {
    figures.push_back(Figure(name + "_throughput", bytes_per_s, "bytes/s"));
    figures.push_back(Figure(name + "_rows", rows_per_s, "rows/s"));
    figures.push_back(Figure(name + "_latency", latencies, "s"));
    for (size_t i = 0; i < percentiles.size(); ++i) {
      figures.push_back(Figure(absl::StrCat(name, "_latency_", kPercentiles[i].name), percentiles[i], "s"));
    }
  }
};

absl::Status CheckBudget(const ServerSummary& server, int64_t bytes) {
  const int64_t free = server.budget_bytes - server.stored_bytes - server.reserved_bytes;
  if (bytes <= free / 2) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("a round of ", HumanBytes(bytes),
                                                    " would fill more than half of the ", HumanBytes(free),
                                                    " that the server has free; fewer --samples or --tokens"));
}

absl::StatusOr<Geometry> MakeGeometry(const BenchOptions& options) {
  Geometry::Options geometry{.num_layers = options.layers, .num_experts = {options.experts}, .top_k = {options.top_k}};
  for (int32_t i = 0; i < options.layers; ++i) geometry.moe_layer_ids.push_back(i);
  auto made = Geometry::Create(geometry);
  if (made.ok() && made->ids_per_row() * (options.tokens - 1) > kMaxSampleIds) {
    return absl::InvalidArgumentError(absl::StrCat("samples of ", options.tokens, " tokens are too big: at most ",
                                                   kMaxSampleIds / made->ids_per_row() + 1, " of this geometry"));
  }
  return made;
}

std::string RunName() { return absl::StrFormat("rrctl-bench-%d-%08x", getpid(), std::random_device()()); }

// All rounds in one run.
class Bench {
 public:
  Bench(std::shared_ptr<Run> run, const BenchOptions& options, const BenchHooks& hooks)
      : run_(std::move(run)),
        options_(options),
        hooks_(hooks),
        deadline_(Clock::Real().Now() + options.max_time),
        load_(run_, options.tokens - 1, deadline_) {}

  absl::Status Measure() {
    for (int round = 0; round < options_.rounds; ++round) {
      bool complete = false;
      absl::Status status = Phase(
          "append", round, [&](int) { return load_.MakeAppender(round); }, appends_, complete);
      if (status.ok() && complete)
        status = Phase(
            "read", round, [&](int) { return load_.MakeReader(round); }, reads_, complete);
      if (!status.ok()) return status;
      if (!complete) break;
      std::vector<std::string> samples;
      for (int64_t i = 0; i < options_.samples; ++i) samples.push_back(BenchLoad::SampleName(round, i));
      if (const auto released = run_->Release(samples); !released.ok()) return released.status();
      ++rounds_;
    }
    if (!reads_.latencies.empty()) return absl::OkStatus();
    return absl::DeadlineExceededError(
        absl::StrCat("nothing was read back in ", options_.max_time.count(), " s; fewer --samples or --tokens"));
  }

  Document Figures() const {
    Document figures = Document::array();
    appends_.AddTo(figures, "append");
    reads_.AddTo(figures, "read");
    return figures;
  }
  int rounds() const { return rounds_; }

 private:
  absl::Status Phase(const std::string& name, int round, const std::function<PhaseTask(int)>& make_task,
                     Measured& measured, bool& complete) {
    bool interrupted = false;
    const PhaseResult result = RunPhase(
        {.workers = options_.workers,
         .items = options_.samples,
         .deadline = deadline_,
         .wait =
             [&](int64_t done) {
               hooks_.progress({.phase = absl::StrCat("round ", round + 1, " of ", options_.rounds, ": ", name),
                                .done = done,
                                .total = options_.samples,
                                .bytes = done * (options_.tokens - 1) * run_->geometry().raw_row_bytes()});
               interrupted |= hooks_.interrupted(kPoll);
               return interrupted;
             }},
        make_task);
    if (!result.status.ok()) return result.status;
    if (interrupted) return absl::CancelledError("interrupted");
    measured.Add(result, options_.tokens - 1, run_->geometry().raw_row_bytes());
    complete = result.complete;
    return absl::OkStatus();
  }

  const std::shared_ptr<Run> run_;
  const BenchOptions& options_;
  const BenchHooks& hooks_;
  const Clock::Time deadline_;
  const BenchLoad load_;
  Measured appends_, reads_;
  int rounds_ = 0;
};

}  // namespace

absl::StatusOr<Document> RunBench(Client& client, const BenchOptions& options, const BenchHooks& hooks) {
  const auto geometry = MakeGeometry(options);
  if (!geometry.ok()) return geometry.status();
  const auto server = client.GetServerInfo();
  if (!server.ok()) return server.status();
  const int64_t bytes = options.samples * (options.tokens - 1) * geometry->raw_row_bytes();
  if (absl::Status status = CheckBudget(*server, bytes); !status.ok()) return status;
  const auto run = client.OpenRun(options.run.empty() ? RunName() : options.run, *geometry, {.ttl = kTtl});
  if (!run.ok()) return run.status();

  Bench bench(*run, options, hooks);
  absl::Status status = bench.Measure();
  const auto dropped = (*run)->Drop();
  if (!status.ok()) return status;
  if (!dropped.ok()) return dropped.status();
  return Document{{"figures", bench.Figures()},
                  {"host", DescribeHost()},
                  {"server", {{"version", server->version}, {"store", server->store}}},
                  {"load",
                   {{"samples", options.samples},
                    {"tokens", options.tokens},
                    {"workers", options.workers},
                    {"rounds", bench.rounds()},
                    {"geometry", GeometryToJson(*geometry)}}}};
}

}  // namespace routing_replay::client
