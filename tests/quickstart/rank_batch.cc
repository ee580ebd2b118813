#include "tests/quickstart/rank_batch.h"

#include <bit>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/wire/checksum.h"
#include "tests/quickstart/expected_rows.h"
#include "tests/quickstart/rank_check.h"

namespace routing_replay::quickstart {
namespace {

constexpr std::chrono::seconds kFetchTimeout(60);
constexpr int64_t kDocumentMultiple = 2 * kContextParallel * kTensorParallel;

static_assert(std::endian::native == std::endian::little, "token checks are computed over little-endian ids");

// The token check over the positions of all rows; trainer and rollout have the same tokens.
TokenCheck CheckOfTokens(const std::vector<uint32_t>& tokens, int64_t rows) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(tokens.data());
  return {rows, Crc32c({bytes, static_cast<size_t>(rows) * sizeof(uint32_t)})};
}

trainer::MicroBatchLayout PackSamples(const Play& play, RowRange range) {
  trainer::MicroBatchLayout layout{.format = trainer::TokenFormat::kThd,
                                   .cu_seqlens_padded = {0},
                                   .partition = trainer::Partition::kZigzagPerDocument,
                                   .cp_size = kContextParallel,
                                   .tp_size = kTensorParallel,
                                   .sequence_parallel = true};
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t tokens = play.samples[i].num_tokens;
    layout.sequences.push_back({.tokens = tokens, .recorded_rows = play.samples[i].rows()});
    layout.total_rows += (tokens + kDocumentMultiple - 1) / kDocumentMultiple * kDocumentMultiple;
    layout.cu_seqlens_padded.push_back(layout.total_rows);
  }
  return layout;
}

}  // namespace

RankPlace PlaceOf(int32_t rank) {
  return {.pp = rank / (kTensorParallel * kContextParallel),
          .cp = rank / kTensorParallel % kContextParallel,
          .tp = rank % kTensorParallel};
}

absl::StatusOr<RankBatch> RankBatch::Plan(const Play& play, RowRange range, RankPlace place) {
  trainer::MicroBatchLayout layout = PackSamples(play, range);
  const auto table =
      trainer::LayerTable::Create({.num_layers = play.geometry.num_layers(), .pipeline_size = kPipelineParallel});
  if (!table.ok()) return table.status();
  absl::StatusOr<trainer::ReplayPlan> plan = trainer::MakeReplayPlan(
      play.geometry, *table, layout, {.pp_rank = place.pp, .rows = {.cp_rank = place.cp, .tp_rank = place.tp}});
  if (!plan.ok()) return plan.status();
  trainer::BufferLayout::Options options{.rows = plan->row_map.rows};
  for (const trainer::OwnedLayer& layer : plan->layers) options.ordinals.push_back(layer.ordinal);
  absl::StatusOr<trainer::BufferLayout> buffer = trainer::BufferLayout::Create(play.geometry, options);
  if (!buffer.ok()) return buffer.status();
  RankBatch batch(play, place, *std::move(buffer));
  for (int64_t i = range.begin; i < range.end; ++i) {
    batch.sample_indices_.push_back(i);
  }
  batch.layout_ = std::move(layout);
  batch.plan_ = *std::move(plan);
  return batch;
}

absl::Status RankBatch::Fetch(Run& run) {
  std::vector<trainer::FetchSequence> sequences;
  for (size_t i = 0; i < sample_indices_.size(); ++i) {
    const SamplePlan& sample = play_->samples[sample_indices_[i]];
    sequences.push_back({.sample = sample.id,
                         .num_tokens = sample.num_tokens,
                         .token_checks = {CheckOfTokens(play_->truth[sample_indices_[i]].tokens, sample.rows())}});
  }
  absl::StatusOr<trainer::StagedRows> staged = trainer::FetchSlices(run, plan_, sequences, {.timeout = kFetchTimeout});
  if (!staged.ok()) return staged.status();
  staged_ = *std::move(staged);
  return absl::OkStatus();
}

absl::Status RankBatch::Realign() {
  const trainer::ShownRows shown(trainer::ExpandRowMap(plan_.row_map));
  const absl::StatusOr<trainer::RealignPlan> plan =
      trainer::PlanRealign(buffer_, {.pieces = staged_.pieces, .rows = shown, .unrecorded = staged_.unrecorded});
  if (!plan.ok()) return plan.status();
  indices_.resize(buffer_.bytes());
  states_.resize(buffer_.rows());
  return trainer::Realign(buffer_, *plan, staged_.staging, absl::MakeSpan(indices_), absl::MakeSpan(states_));
}

absl::Status RankBatch::Check(RankResult& result) const {
  std::vector<TrueSequence> sequences;
  for (const int64_t index : sample_indices_) {
    sequences.push_back({play_->truth[index].routes, play_->samples[index].unrecorded});
  }
  const std::vector<int32_t> ordinals = ExpectedOrdinals(play_->geometry.num_layers(), kPipelineParallel, place_.pp);
  if (absl::Status status = CheckLayers(buffer_, ordinals); !status.ok()) return status;
  const std::vector<ExpectedRow> expected = ExpectedRows(layout_, sequences, place_.cp, place_.tp);
  const InjectedRows injected{buffer_, indices_, states_};
  if (absl::Status status = CheckIndices(injected, expected, result); !status.ok()) return status;
  if (absl::Status status = CheckRouter(injected, expected, sample_indices_.front(), result); !status.ok()) {
    return status;
  }
  ++result.micro_batches;
  result.received_bytes += static_cast<int64_t>(staged_.staging.size());
  return absl::OkStatus();
}

}  // namespace routing_replay::quickstart
