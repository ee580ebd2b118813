// One rank of two pipeline stages replays a sequence whose rows are an array in its memory.
#include <vector>

#include "expect.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/router.h"
#include "routing_replay/trainer/source.h"

using namespace routing_replay;
using namespace routing_replay::trainer;

namespace {

constexpr int64_t kTokens = 10, kRows = kTokens - 1, kLayers = 4, kTopK = 2;
constexpr int32_t kExperts = 8;

int32_t Expert(int64_t row, int64_t layer, int64_t k) { return static_cast<int32_t>((row + layer + k * 3) % kExperts); }

}  // namespace

int main() {
  const Geometry geometry = Geometry::Uniform(kLayers, kExperts, kTopK);
  std::vector<int32_t> tensor;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      for (int64_t k = 0; k < kTopK; ++k) tensor.push_back(Expert(row, layer, k));
    }
  }
  LocalSource source(geometry);
  EXPECT(source
             .Add({.sample = "s"}, {.dtype = DType::kI32, .shape = {kRows, kLayers, kTopK}},
                  {reinterpret_cast<const uint8_t*>(tensor.data()), tensor.size() * sizeof(int32_t)})
             .ok());

  const auto table = LayerTable::Create({.num_layers = kLayers, .pipeline_size = 2});
  EXPECT(table.ok());
  const MicroBatchLayout micro_batch{
      .sequences = {{kTokens, kRows}}, .cu_seqlens_padded = {0, 12}, .total_rows = 12};  // Two pads at the end.
  const auto plan = MakeReplayPlan(geometry, *table, micro_batch, {.pp_rank = 1});
  EXPECT(plan.ok() && plan->layers.size() == 2 && plan->layers[0].layer_id == 2);
  const auto staged = source.Fetch(*plan, {{.sample = "s"}}, {});
  EXPECT(staged.ok());

  const auto layout = BufferLayout::Create(geometry, {.ordinals = {2, 3}, .rows = plan->row_map.rows});
  EXPECT(layout.ok());
  const ShownRows shown(ExpandRowMap(plan->row_map));
  const auto realign =
      PlanRealign(*layout, {.pieces = staged->pieces, .rows = shown, .unrecorded = staged->unrecorded});
  EXPECT(realign.ok() && realign->replayed_rows == kRows);
  std::vector<uint8_t> indices(layout->bytes());
  std::vector<RowState> states(layout->rows());
  EXPECT(Realign(*layout, *realign, staged->staging, absl::MakeSpan(indices), absl::MakeSpan(states)).ok());
  for (int32_t slot = 0; slot < 2; ++slot) {
    const auto slab = layout->slab(absl::MakeConstSpan(indices), slot);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t k = 0; k < kTopK; ++k) EXPECT(slab[row * kTopK + k] == Expert(row, 2 + slot, k));
    }
  }

  const std::vector<float> logits(layout->rows() * kExperts, 0.5F);
  std::vector<float> probs(logits.size());
  std::vector<uint8_t> routing_map(logits.size());
  RouterCounters counters;
  EXPECT(RouterReplayForward<float>(
             {.num_experts = kExperts, .top_k = kTopK},
             {.logits = logits, .indices = layout->slab(absl::MakeConstSpan(indices), 0), .states = states},
             {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(routing_map)}, counters)
             .ok());
  EXPECT(counters.replayed_rows == kRows);
  EXPECT(routing_map[Expert(0, 2, 0)] == 1 && routing_map[Expert(0, 2, 1)] == 1);
}
