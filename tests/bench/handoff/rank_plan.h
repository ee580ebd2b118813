// The plan of a rank of the hand-off for one micro-batch.
#ifndef TESTS_BENCH_HANDOFF_RANK_PLAN_H_
#define TESTS_BENCH_HANDOFF_RANK_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/source.h"
#include "tests/bench/handoff/scenario.h"

namespace routing_replay::bench {

// The id of sample `sample` in round `round`.
std::string SampleId(int64_t round, int32_t sample);

// `samples` must be one of scenario.micro_batches().
absl::StatusOr<trainer::ReplayPlan> PlanMicroBatch(const HandoffScenario& scenario, RowRange samples, RankPlace place);
// The sequences that the rank fetches for these samples.
std::vector<trainer::FetchSequence> FetchSequences(const HandoffScenario& scenario, RowRange samples, int64_t round);

}  // namespace routing_replay::bench

#endif  // TESTS_BENCH_HANDOFF_RANK_PLAN_H_
