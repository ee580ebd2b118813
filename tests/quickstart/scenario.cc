#include "tests/quickstart/scenario.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/generator/trace_files.h"

namespace routing_replay::quickstart {
namespace {

using testing::GeneratedSample;
using testing::RoutingTrace;

constexpr uint64_t kSeed = 20251110;
constexpr int64_t kSyntheticSamples = 32;
constexpr int64_t kLostRows = 5;

// The payload forms alternate with the sample's index. After each round of forms, samples switch between one turn and
// two. Every eighth sample lost a few rows in its middle.
SamplePlan PlanSample(int64_t index, int64_t rows) {
  SamplePlan plan{.id = absl::StrCat("step-1/", index),
                  .num_tokens = rows + 1,
                  .form = static_cast<PayloadForm>(index % kPayloadForms)};
  const int64_t first_turn = rows * 3 / 5;
  if (index / kPayloadForms % 2 == 1 && first_turn > 0) {
    plan.turns = {{0, first_turn}, {first_turn, rows}};
  } else {
    plan.turns = {{0, rows}};
  }
  if (index % 8 == 3 && rows > 4 * kLostRows) plan.unrecorded = {RowRange::OfSize(rows / 2, kLostRows)};
  return plan;
}

void AddSample(GeneratedSample truth, Play& play) {
  play.samples.push_back(PlanSample(static_cast<int64_t>(play.samples.size()), truth.routes.rows));
  play.truth.push_back(std::move(truth));
}

Play SyntheticPlay() {
  const testing::LatentConfig config = testing::Qwen3_30B_A3B();
  const testing::LatentGenerator generator(config, kSeed);
  Play play{.run = "quickstart",
            .description = absl::StrCat(config.name, " (synthetic rows)"),
            .geometry = Geometry::Uniform(config.layers, config.num_experts, config.top_k)};
  int64_t index = 0;
  for (const int64_t tokens : testing::LognormalLengths(kSeed, kSyntheticSamples, 1400, .5, 200, 4096)) {
    AddSample(generator.Generate(index++, tokens - 1), play);
  }
  return play;
}

Play TracePlay(RoutingTrace trace) {
  const testing::Routes& first = trace.sequences.front();
  Play play{.run = absl::StrCat("quickstart-", trace.name),
            .description = absl::StrCat(trace.name, " (recorded rows)"),
            .geometry = Geometry::Uniform(first.layers, first.num_experts, first.top_k)};
  uint64_t index = 0;
  for (testing::Routes& routes : trace.sequences) {
    std::vector<uint32_t> tokens = testing::ZipfTokens(kSeed + index++, routes.rows + 1);
    AddSample({std::move(tokens), std::move(routes)}, play);
  }
  return play;
}

}  // namespace

const char* PayloadFormName(PayloadForm form) {
  switch (form) {
    case PayloadForm::kRawInt32:
      return "RAW int32";
    case PayloadForm::kNpy:
      return "NPY";
    case PayloadForm::kBase64Int32:
      return "BASE64 int32";
    case PayloadForm::kBase64Npy:
      return "BASE64_NPY";
  }
  return "?";
}

std::vector<RowRange> Play::MicroBatches() const {
  std::vector<RowRange> batches;
  int64_t tokens = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(samples.size()); ++i) {
    if (batches.empty() || tokens + samples[i].num_tokens > kMicroBatchTokens) {
      batches.push_back({i, i});
      tokens = 0;
    }
    batches.back().end = i + 1;
    tokens += samples[i].num_tokens;
  }
  return batches;
}

absl::StatusOr<std::vector<Play>> MakeScenario(const std::string& trace_directory) {
  std::vector<Play> plays;
  if (trace_directory.empty()) {
    plays.push_back(SyntheticPlay());
    return plays;
  }
  absl::StatusOr<std::vector<RoutingTrace>> traces = testing::ReadTraceDirectory(trace_directory);
  if (!traces.ok()) return traces.status();
  for (RoutingTrace& trace : *traces) {
    if (!trace.sequences.empty()) plays.push_back(TracePlay(std::move(trace)));
  }
  return plays;
}

}  // namespace routing_replay::quickstart
