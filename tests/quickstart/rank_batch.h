// One micro-batch on one rank, from plan to index buffer.
#ifndef TESTS_QUICKSTART_RANK_BATCH_H_
#define TESTS_QUICKSTART_RANK_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/client.h"
#include "routing_replay/trainer/fetch.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/row_map.h"
#include "tests/quickstart/results.h"
#include "tests/quickstart/scenario.h"

namespace routing_replay::quickstart {

inline constexpr int32_t kTensorParallel = 2, kContextParallel = 2, kPipelineParallel = 2;

struct RankPlace {
  int32_t pp = 0, cp = 0, tp = 0;
};
RankPlace PlaceOf(int32_t rank);

// Not thread-safe. Call each step once, in this order.
class RankBatch {
 public:
  // Makes the plan for one packed micro-batch: the samples of `play` whose indexes are in `range`, each padded to a
  // multiple of 2 · cp · tp. `play` must outlive the batch.
  static absl::StatusOr<RankBatch> Plan(const Play& play, RowRange range, RankPlace place);

  // Reads the plan's slices.
  absl::Status Fetch(Run& run);
  absl::Status Realign();
  // Compares layers, states, ids and routing maps with the reference.
  absl::Status Check(RankResult& result) const;

 private:
  RankBatch(const Play& play, RankPlace place, trainer::BufferLayout buffer)
      : play_(&play), place_(place), buffer_(std::move(buffer)) {}

  const Play* play_;
  RankPlace place_;
  std::vector<int64_t> sample_indices_;
  trainer::MicroBatchLayout layout_;
  trainer::ReplayPlan plan_;
  trainer::BufferLayout buffer_;
  trainer::StagedRows staged_;
  std::vector<uint8_t> indices_;
  std::vector<trainer::RowState> states_;
};

}  // namespace routing_replay::quickstart

#endif  // TESTS_QUICKSTART_RANK_BATCH_H_
