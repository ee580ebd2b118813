#include "tests/quickstart/rank.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/client.h"
#include "tests/quickstart/phase_gate.h"
#include "tests/quickstart/rank_batch.h"
#include "tests/quickstart/results.h"

namespace routing_replay::quickstart {
namespace {

static_assert(kRanks == kTensorParallel * kContextParallel * kPipelineParallel);

// The micro-batches of one run.
struct RankPlay {
  const Play* play = nullptr;
  std::vector<RankBatch> batches;
};

absl::StatusOr<std::vector<RankPlay>> PlanAll(const std::vector<Play>& plays, RankPlace place) {
  std::vector<RankPlay> planned;
  for (const Play& play : plays) {
    planned.push_back({&play, {}});
    for (const RowRange range : play.MicroBatches()) {
      absl::StatusOr<RankBatch> batch = RankBatch::Plan(play, range, place);
      if (!batch.ok()) return batch.status();
      planned.back().batches.push_back(*std::move(batch));
    }
  }
  return planned;
}

absl::Status FetchAll(Client& client, std::vector<RankPlay>& plays) {
  for (RankPlay& play : plays) {
    const absl::StatusOr<std::shared_ptr<Run>> run = client.JoinRun(play.play->run);
    if (!run.ok()) return run.status();
    for (RankBatch& batch : play.batches) {
      if (absl::Status status = batch.Fetch(**run); !status.ok()) return status;
    }
  }
  return FinishPhase("fetched");
}

absl::Status RealignAll(std::vector<RankPlay>& plays) {
  for (RankPlay& play : plays) {
    for (RankBatch& batch : play.batches) {
      if (absl::Status status = batch.Realign(); !status.ok()) return status;
    }
  }
  return FinishPhase("realigned");
}

absl::Status CheckAll(const std::vector<RankPlay>& plays, RankResult& result) {
  for (const RankPlay& play : plays) {
    for (const RankBatch& batch : play.batches) {
      if (absl::Status status = batch.Check(result); !status.ok()) return status;
    }
  }
  return FinishPhase("checked");
}

}  // namespace

absl::Status RunRank(const std::vector<Play>& plays, const std::string& endpoint, int32_t rank) {
  absl::StatusOr<std::vector<RankPlay>> planned = PlanAll(plays, PlaceOf(rank));
  if (!planned.ok()) return planned.status();
  const absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect({.endpoint = endpoint});
  if (!client.ok()) return client.status();
  if (absl::Status status = FinishPhase("ready"); !status.ok()) return status;
  if (absl::Status status = FetchAll(**client, *planned); !status.ok()) return status;
  if (absl::Status status = RealignAll(*planned); !status.ok()) return status;
  RankResult result;
  if (absl::Status status = CheckAll(*planned, result); !status.ok()) return status;
  WriteResult(result);
  return absl::OkStatus();
}

}  // namespace routing_replay::quickstart
