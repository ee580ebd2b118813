#include "tests/bench/handoff/rank_plan.h"

#include "absl/strings/str_cat.h"

namespace routing_replay::bench {
namespace {

trainer::MicroBatchLayout PackSamples(const HandoffScenario& scenario, RowRange samples) {
  trainer::MicroBatchLayout layout{.cu_seqlens_padded = {0}, .cp_size = kCp, .tp_size = kTp, .sequence_parallel = true};
  for (auto i = static_cast<int32_t>(samples.begin); i < samples.end; ++i) {
    const int64_t tokens = scenario.tokens(i);
    layout.sequences.push_back({.tokens = tokens, .recorded_rows = scenario.rows(i)});
    layout.total_rows += (tokens + kSamplePadMultiple - 1) / kSamplePadMultiple * kSamplePadMultiple;
    layout.cu_seqlens_padded.push_back(layout.total_rows);
  }
  return layout;
}

}  // namespace

std::string SampleId(int64_t round, int32_t sample) { return absl::StrCat("step-", round, "/", sample); }

absl::StatusOr<trainer::ReplayPlan> PlanMicroBatch(const HandoffScenario& scenario, RowRange samples, RankPlace place) {
  const Geometry& geometry = scenario.geometry();
  const auto table = trainer::LayerTable::Create({.num_layers = geometry.num_layers(), .pipeline_size = kPp});
  if (!table.ok()) return table.status();
  return trainer::MakeReplayPlan(geometry, *table, PackSamples(scenario, samples),
                                 {.pp_rank = place.pp, .rows = {.cp_rank = place.cp, .tp_rank = place.tp}});
}

std::vector<trainer::FetchSequence> FetchSequences(const HandoffScenario& scenario, RowRange samples, int64_t round) {
  std::vector<trainer::FetchSequence> sequences;
  for (auto i = static_cast<int32_t>(samples.begin); i < samples.end; ++i) {
    sequences.push_back({.sample = SampleId(round, i), .num_tokens = scenario.tokens(i)});
  }
  return sequences;
}

}  // namespace routing_replay::bench
