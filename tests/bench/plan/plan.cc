#include "tests/bench/plan/plan.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/padding.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/wire/allocator.h"

namespace routing_replay::bench {
namespace {

using trainer::MicroBatchLayout;
using trainer::Partition;
using trainer::ReplayPlan;
using trainer::UnpaddedBatch;

constexpr int64_t kTokens = int64_t{1} << 20, kQuickTokens = int64_t{1} << 14;
constexpr int32_t kCp = 4, kTp = 2;

struct Scenario {
  std::string name;
  std::function<absl::StatusOr<ReplayPlan>()> plan;
  int64_t rows = 0;  // The expected number of local rows.
};

// Tokens a little below the padded length, as real documents have.
std::vector<trainer::SequenceShape> Sequences(int64_t count, int64_t length) {
  std::vector<trainer::SequenceShape> sequences(count);
  for (int64_t i = 0; i < count; ++i) {
    sequences[i].tokens = length - i % std::min<int64_t>(length / 4, 7);
    sequences[i].recorded_rows = sequences[i].tokens - 1;
  }
  return sequences;
}

MicroBatchLayout Packed(int64_t tokens, int64_t length) {
  MicroBatchLayout layout{.sequences = Sequences(tokens / length, length), .total_rows = tokens, .cp_size = kCp};
  for (int64_t row = 0; row <= tokens; row += length) layout.cu_seqlens_padded.push_back(row);
  layout.tp_size = kTp;
  layout.sequence_parallel = true;
  return layout;
}

MicroBatchLayout Rectangle(int64_t tokens, int64_t length) {
  MicroBatchLayout layout{.format = trainer::TokenFormat::kBshd, .sequences = Sequences(tokens / length, length)};
  layout.batch_size = tokens / length;
  layout.padded_length = length;
  layout.partition = Partition::kZigzagPerSequence;
  layout.cp_size = kCp;
  layout.tp_size = kTp;
  layout.sequence_parallel = true;
  return layout;
}

class Scenarios {
 public:
  explicit Scenarios(int64_t tokens) : tokens_(tokens) {
    Add("thd-8192", Packed(tokens, 8192));
    Add("thd-64", Packed(tokens, 64));
    Add("bshd-4096", Rectangle(tokens, 4096));
    MicroBatchLayout samples = Packed(tokens, 1024);
    samples.tokens_per_sample = 512;
    Add("tokens-per-sample", std::move(samples));
    AddPredicted();
  }

  const std::vector<Scenario>& all() const { return all_; }

 private:
  absl::StatusOr<ReplayPlan> Plan(const MicroBatchLayout& layout) const {
    return MakeReplayPlan(geometry_, *table_, layout, {});
  }

  void Add(const std::string& name, MicroBatchLayout layout) {
    all_.push_back({name, [this, layout = std::move(layout)] { return Plan(layout); }, tokens_ / kCp / kTp});
  }

  void AddPredicted() {
    const UnpaddedBatch batch{
        .sequences = Sequences(tokens_ / 1024, 1024), .cp_size = kCp, .tp_size = kTp, .sequence_parallel = true};
    const auto plan = [this, batch]() -> absl::StatusOr<ReplayPlan> {
      const auto prediction = PredictPadding(batch, trainer::VerlPadding{});
      if (!prediction.ok()) return prediction.status();
      return Plan(prediction->layout);
    };
    all_.push_back({"verl-predicted", plan, tokens_ / kCp / kTp});
  }

  const int64_t tokens_;
  const Geometry geometry_ = Geometry::Uniform(48, 128, 8);
  const absl::StatusOr<trainer::LayerTable> table_ =
      trainer::LayerTable::Create({.num_layers = 48, .pipeline_size = 4});
  std::vector<Scenario> all_;
};

double Milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

absl::Status Play(const Scenario& scenario, std::vector<double>& times) {
  absl::StatusOr<ReplayPlan> plan;
  times.push_back(Milliseconds([&] { plan = scenario.plan(); }));
  if (!plan.ok()) return plan.status();
  if (plan->row_map.rows == scenario.rows && plan->rows_to_read > 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(scenario.name, " has ", plan->row_map.rows, " rows"));
}

}  // namespace

absl::StatusOr<std::vector<Figure>> BenchPlan(const BenchOptions& options) {
  if (options.tuning.clients) TuneAllocator();
  const int64_t tokens = options.quick ? kQuickTokens : kTokens;
  const Scenarios scenarios(tokens);
  const size_t map_bytes = sizeof(trainer::LocalRow) * static_cast<size_t>(tokens / kCp / kTp);
  std::vector<uint8_t> from(map_bytes, 1), to(map_bytes, 2);
  std::vector<std::vector<double>> times(scenarios.all().size());
  std::vector<double> floor;
  for (int round = -kWarmUpRounds; round < options.rounds(); ++round) {
    if (round == 0) {
      for (std::vector<double>& of_scenario : times) of_scenario.clear();
      floor.clear();
    }
    for (size_t i = 0; i < times.size(); ++i) {
      if (absl::Status status = Play(scenarios.all()[i], times[i]); !status.ok()) return status;
    }
    floor.push_back(Milliseconds([&] { std::memcpy(to.data(), from.data(), map_bytes); }));
  }
  std::vector<Figure> figures;
  for (size_t i = 0; i < times.size(); ++i) {
    figures.push_back(MakeFigure(absl::StrCat("plan.", scenarios.all()[i].name), "ms", times[i], "memcpy", floor));
  }
  return figures;
}

}  // namespace routing_replay::bench
