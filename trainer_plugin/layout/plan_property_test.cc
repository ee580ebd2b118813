// Plans of all ranks for random models and micro-batches: rows and layers are checked together.
#include <algorithm>
#include <vector>

#include "routing_replay/trainer/plan.h"
#include "tests/support/layout_trials.h"
#include "tests/support/random_layouts.h"
#include "tests/support/random_models.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::LayoutTrials;
using routing_replay::testing::RandomLayouts;
using routing_replay::testing::RandomModels;

struct Configuration {
  LayerSplit split;
  Geometry::Options model;
  MicroBatchLayout layout;
};

Configuration Next(RandomModels& models, RandomLayouts& layouts) {
  Configuration next{.split = models.NextSplit(), .layout = layouts.Next()};
  next.model = models.NextGeometry(next.split.num_layers);
  if (layouts.Pick(0, 4) == 0) {
    next.layout.target_rows =
        next.layout.total_rows + next.layout.batch_size * next.layout.padded_length + layouts.Pick(0, 3);
  }
  return next;
}

bool AreAll(const std::vector<int>& counts, int count) {
  return std::all_of(counts.begin(), counts.end(), [count](int i) { return i == count; });
}

// Counts how often each recorded row of each MoE layer is in a plan: [ordinal][sequence][row].
class Planned {
 public:
  explicit Planned(const Configuration& of) {
    std::vector<std::vector<int>> rows;
    for (const SequenceShape& shape : of.layout.sequences) rows.emplace_back(shape.recorded_rows);
    times_.assign(of.model.moe_layer_ids.size(), rows);
  }

  void Add(const ReplayPlan& plan) {
    for (const OwnedLayer& layer : plan.layers) {
      for (const PlanSlice& slice : plan.slices) {
        for (const RowRange& range : slice.rows) {
          for (int64_t row = range.begin; row < range.end; ++row) ++times_.at(layer.ordinal).at(slice.sequence).at(row);
        }
      }
    }
  }

  void ExpectAll(int times) const {
    for (size_t layer = 0; layer < times_.size(); ++layer) {
      for (size_t i = 0; i < times_[layer].size(); ++i) {
        ASSERT_TRUE(AreAll(times_[layer][i], times)) << "layer " << layer << ", sequence " << i;
      }
    }
  }

 private:
  std::vector<std::vector<std::vector<int>>> times_;
};

// Checks that the slices are exactly the rows that the row map replays, as normal lists, and that the plan's bytes are
// right for all layers: one byte per id up to 256 experts, else two.
void ExpectReadsWhatItReplays(const ReplayPlan& plan, const Configuration& of) {
  std::vector<std::vector<int>> wanted;
  for (const SequenceShape& shape : of.layout.sequences) wanted.emplace_back(shape.tokens);
  int64_t rows = 0;
  for (const LocalRow& row : ExpandRowMap(plan.row_map)) {
    if (row.state != RowState::kReplayed || plan.layers.empty()) continue;
    ++wanted.at(row.sequence).at(row.row);
    ++rows;
  }
  int32_t sequence = -1;
  for (const PlanSlice& slice : plan.slices) {
    ASSERT_GT(slice.sequence, sequence);
    sequence = slice.sequence;
    ASSERT_FALSE(slice.rows.empty());
    int64_t end = -1;
    for (const RowRange& range : slice.rows) {
      ASSERT_GT(range.begin, end);
      ASSERT_GT(range.end, range.begin);
      end = range.end;
      for (int64_t row = range.begin; row < range.end; ++row) --wanted.at(sequence).at(row);
    }
  }
  for (size_t i = 0; i < wanted.size(); ++i) ASSERT_TRUE(AreAll(wanted[i], 0)) << "sequence " << i;
  int64_t bytes = 0;
  for (const OwnedLayer& layer : plan.layers) {
    bytes += rows * of.model.top_k[layer.ordinal] * (of.model.num_experts[layer.ordinal] <= 256 ? 1 : 2);
  }
  ASSERT_EQ(plan.rows_to_read, rows);
  ASSERT_EQ(plan.bytes_to_read, bytes);
}

// Checks that the plan has exactly the MoE layers of this range, with the E and K of the model.
void ExpectLayersOfTheChunk(const ReplayPlan& plan, const Configuration& of, LayerRange range) {
  std::vector<LayerRouting> routing;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < of.model.moe_layer_ids.size(); ++i) {
    if (!range.contains(of.model.moe_layer_ids[i])) continue;
    ids.push_back(of.model.moe_layer_ids[i]);
    routing.push_back({of.model.moe_layer_ids[i], of.model.num_experts[i], of.model.top_k[i]});
  }
  ASSERT_EQ(plan.layers.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) ASSERT_EQ(plan.layers[i].layer_id, ids[i]);
  ASSERT_EQ(plan.routing, routing);
}

// Checks that the plans of all tp · cp · pp ranks together read each row of each layer. Makes one plan per virtual
// stage or, if not `by_chunk`, one per rank.
void ExpectEachRowAndLayerPlanned(const Configuration& of, bool by_chunk) {
  ASSERT_OK_AND_ASSIGN(const LayerTable table, LayerTable::Create(of.split));
  ASSERT_OK_AND_ASSIGN(const Geometry geometry, Geometry::Create(of.model));
  Planned planned(of);
  for (int32_t p = 0; p < table.pipeline_size(); ++p) {
    for (int32_t c = 0; c < of.layout.cp_size; ++c) {
      for (int32_t t = 0; t < of.layout.tp_size; ++t) {
        PlanRank rank{.pp_rank = p, .rows = {.cp_rank = c, .tp_rank = t}};
        for (int32_t v = 0; v < (by_chunk ? table.virtual_stages() : 1); ++v) {
          if (by_chunk) rank.chunk = v;
          ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, MakeReplayPlan(geometry, table, of.layout, rank));
          ASSERT_NO_FATAL_FAILURE(ExpectReadsWhatItReplays(plan, of));
          if (by_chunk) {
            ASSERT_NO_FATAL_FAILURE(ExpectLayersOfTheChunk(plan, of, table.range(p, v)));
          }
          planned.Add(plan);
        }
      }
    }
  }
  planned.ExpectAll(of.layout.sequence_parallel ? 1 : of.layout.tp_size);
}

// Each (sequence, row, MoE layer) is on exactly one rank of a replica with sequence parallelism, and once on every
// tensor rank without it.
TEST(MakeReplayPlanProperty, AllRanksTogetherPlanEachRowOfEachLayer) {
  RandomModels models(61);
  RandomLayouts layouts(62);
  for (int trial = 0; trial < LayoutTrials(); ++trial) {
    const Configuration configuration = Next(models, layouts);
    ASSERT_NO_FATAL_FAILURE(ExpectEachRowAndLayerPlanned(configuration, models.Pick(0, 1))) << "trial " << trial;
  }
}

}  // namespace
}  // namespace routing_replay::trainer
