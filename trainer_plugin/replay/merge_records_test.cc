#include "routing_replay/trainer/merge_records.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <utility>

#include "routing_replay/trainer/router.h"
#include "tests/reference/token_layout_reference.h"
#include "tests/support/random_layouts.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using routing_replay::testing::MakeRandomRoutes;
using routing_replay::testing::RandomLayouts;
using routing_replay::testing::RandomRoutes;
using ::testing::HasSubstr;

Geometry Mixed() {
  return *Geometry::Create({.num_layers = 9,
                            .moe_layer_ids = {1, 2, 3, 5, 6, 8},
                            .num_experts = {8, 256, 300, 64, 1024, 64},
                            .top_k = {2, 8, 4, 6, 3, 6}});
}

// The ranks of a model replica and what they record. The slow reference says which rows each rank has.
class Replica {
 public:
  Replica(const Geometry& geometry, const MicroBatchLayout& layout, uint64_t seed)
      : geometry_(geometry), layout_(layout) {
    for (const SequenceShape& shape : layout.sequences) {
      routes_.push_back(MakeRandomRoutes(geometry, shape.tokens, seed + routes_.size()));
    }
  }

  // Every (cp, tp) rank records the layers of a stage.
  void Record(const std::vector<int32_t>& ordinals) {
    for (const auto& [cp_rank, tp_rank] : Places()) {
      Rank& rank = AddRank(ordinals, cp_rank, tp_rank);
      const std::vector<LocalRow> shown = reference::LocalRows(layout_, cp_rank, tp_rank);
      for (int32_t slot = 0; slot < rank.layout.num_layers(); ++slot) {
        WriteRoutes(shown, ordinals[slot], rank.layout.slab(absl::MakeSpan(rank.indices), slot));
      }
    }
  }
  // Every (cp, tp) rank records one layer; `write` makes the ids of its local rows.
  template <typename Write>
  void Record(const std::vector<int32_t>& ordinals, Write write) {
    for (const auto& [cp_rank, tp_rank] : Places()) {
      Rank& rank = AddRank(ordinals, cp_rank, tp_rank);
      write(reference::LocalRows(layout_, cp_rank, tp_rank), rank.layout.slab(absl::MakeSpan(rank.indices), 0));
    }
  }

  std::vector<RankRecord> records() const {
    std::vector<RankRecord> records;
    for (const Rank& rank : ranks_) records.push_back({rank.layout, rank.map, rank.indices});
    return records;
  }
  absl::StatusOr<std::vector<MergedSequence>> Merge(const std::vector<std::string>& samples = {}) const {
    return MergeRecords(geometry_, layout_, records(), samples);
  }

  // The ids of rows 0 … rows - 1 of a sequence, as they would be appended to the service.
  std::vector<uint8_t> Expected(size_t sequence, const std::vector<int32_t>& ordinals) const {
    const int64_t rows = layout_.sequences[sequence].recorded_rows;
    std::vector<uint8_t> planes;
    for (int32_t ordinal : ordinals) {
      const LayerRouting& layer = geometry_.layer(ordinal);
      std::vector<uint8_t> plane(geometry_.plane_bytes(ordinal, rows, Codec::kRaw));
      for (int64_t i = 0; i < rows * layer.top_k; ++i) {
        StoreId(plane.data(), layer.id_bytes(), i, routes_[sequence].layers[ordinal][i]);
      }
      planes.insert(planes.end(), plane.begin(), plane.end());
    }
    return planes;
  }

  // Changes an id of a local row in the record of a rank.
  void Break(size_t record, int32_t slot, int64_t local_row) {
    Rank& rank = ranks_[record];
    rank.layout.slab(absl::MakeSpan(rank.indices), slot)[local_row * rank.layout.row_bytes(slot)] ^= 1;
  }
  void Drop(size_t record) { ranks_.erase(ranks_.begin() + record); }

 private:
  struct Rank {
    BufferLayout layout;
    RowMap map;
    std::vector<uint8_t> indices;
  };

  std::vector<std::pair<int32_t, int32_t>> Places() const {
    std::vector<std::pair<int32_t, int32_t>> places;
    for (int32_t c = 0; c < layout_.cp_size; ++c) {
      for (int32_t t = 0; t < layout_.tp_size; ++t) places.push_back({c, t});
    }
    return places;
  }

  Rank& AddRank(const std::vector<int32_t>& ordinals, int32_t cp_rank, int32_t tp_rank) {
    RowMap map = *BuildRowMap(layout_, {.cp_rank = cp_rank, .tp_rank = tp_rank});
    const auto layout = BufferLayout::Create(geometry_, {.ordinals = ordinals, .rows = map.rows});
    // Not zeros, because in a real record, pad rows contain whatever the routers chose there.
    std::vector<uint8_t> indices(layout->bytes(), 0xEE);
    ranks_.push_back({*layout, std::move(map), std::move(indices)});
    return ranks_.back();
  }

  void WriteRoutes(const std::vector<LocalRow>& shown, int32_t ordinal, absl::Span<uint8_t> slab) const {
    const LayerRouting& layer = geometry_.layer(ordinal);
    for (size_t i = 0; i < shown.size(); ++i) {
      if (shown[i].state == RowState::kPad) continue;
      const uint16_t* ids = &routes_[shown[i].sequence].layers[ordinal][shown[i].row * layer.top_k];
      for (int32_t k = 0; k < layer.top_k; ++k) StoreId(slab.data(), layer.id_bytes(), i * layer.top_k + k, ids[k]);
    }
  }

  const Geometry geometry_;
  const MicroBatchLayout layout_;
  std::vector<RandomRoutes> routes_;
  std::deque<Rank> ranks_;
};

MicroBatchLayout TwoDocuments() {
  return {.sequences = {{.tokens = 13, .recorded_rows = 12}, {.tokens = 8, .recorded_rows = 7}},
          .cu_seqlens_padded = {0, 16, 24},
          .total_rows = 24,
          .cp_size = 2,
          .tp_size = 2,
          .sequence_parallel = true};
}

// Stages of any size, whose chunks are recorded separately and in any order.
TEST(MergeRecords, AllStagesGiveBackTheSamples) {
  RandomLayouts layouts(63);
  std::mt19937 random(63);
  const std::vector<int32_t> all = {0, 1, 2, 3, 4, 5};
  for (int trial = 0; trial < 400; ++trial) {
    const MicroBatchLayout layout = layouts.Next();
    Replica replica(Mixed(), layout, trial);
    std::vector<std::vector<int32_t>> stages;
    for (int32_t ordinal : all) {
      if (stages.empty() || layouts.Pick(0, 1)) stages.emplace_back();
      stages.back().push_back(ordinal);
    }
    std::shuffle(stages.begin(), stages.end(), random);
    for (const std::vector<int32_t>& stage : stages) replica.Record(stage);
    ASSERT_OK_AND_ASSIGN(const auto merged, replica.Merge());
    ASSERT_EQ(merged.size(), layout.sequences.size());
    for (size_t i = 0; i < merged.size(); ++i) {
      ASSERT_EQ(merged[i].rows, layout.sequences[i].recorded_rows);
      ASSERT_EQ(merged[i].planes, replica.Expected(i, all)) << "trial " << trial;
    }
  }
}

// Routers that route live write their choice into the slabs of a recording pass.
TEST(MergeRecords, LiveChoicesComeBackAsRows) {
  const Geometry geometry = Geometry::Uniform(1, 300, 4);
  const RouterConfig config{.num_experts = 300, .top_k = 4};
  std::mt19937 random(66);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> logits;  // [sequence][row · E + e]
  const MicroBatchLayout layout = TwoDocuments();
  for (const SequenceShape& shape : layout.sequences) {
    logits.emplace_back(shape.tokens * 300);
    for (float& x : logits.back()) x = normal(random);
  }
  RouterCounters counters;
  const auto choose = [&](const std::vector<float>& x, const std::vector<RowState>& states,
                          absl::Span<uint8_t> chosen) {
    std::vector<float> probs(x.size());
    std::vector<uint8_t> map(x.size());
    ASSERT_OK(RouterReplayForward(
        config, {.logits = x, .indices = chosen, .states = states},
        {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(map), .chosen = chosen}, counters));
  };
  Replica replica(geometry, layout, 4);
  replica.Record({0}, [&](absl::Span<const LocalRow> shown, absl::Span<uint8_t> slab) {
    std::vector<float> local(shown.size() * 300);
    std::vector<RowState> states;
    for (size_t i = 0; i < shown.size(); ++i) {
      states.push_back(shown[i].state == RowState::kPad ? RowState::kPad : RowState::kUnrecorded);
      if (shown[i].state == RowState::kPad) continue;
      std::copy_n(&logits[shown[i].sequence][shown[i].row * 300], 300, &local[i * 300]);
    }
    choose(local, states, slab);
  });
  ASSERT_OK_AND_ASSIGN(const auto merged, replica.Merge());
  for (size_t i = 0; i < merged.size(); ++i) {
    const SequenceShape& shape = layout.sequences[i];
    std::vector<uint8_t> whole(geometry.plane_bytes(0, shape.tokens, Codec::kRaw));
    choose(logits[i], std::vector<RowState>(shape.tokens, RowState::kUnrecorded), absl::MakeSpan(whole));
    whole.resize(geometry.plane_bytes(0, shape.recorded_rows, Codec::kRaw));
    EXPECT_EQ(merged[i].planes, whole);
  }
}

TEST(MergeRecords, NamesWhatIsMissing) {
  Replica replica(Mixed(), TwoDocuments(), 1);
  replica.Record({0, 1, 2});
  auto merged = replica.Merge();
  EXPECT_THAT(merged, Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
  EXPECT_EQ(GetErrorDetail(merged.status())->layer, 5);
  replica.Record({3, 4, 5});
  ASSERT_OK(replica.Merge());
  replica.Drop(6);  // Context rank 1, tensor rank 0 of the second stage: rows 4 … 7 of the first document.
  merged = replica.Merge({"a", "b"});
  EXPECT_THAT(merged, Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
  const ErrorDetail detail = *GetErrorDetail(merged.status());
  EXPECT_EQ(detail.sample, "a");
  EXPECT_EQ(detail.row, 4);
  EXPECT_EQ(detail.layer, 5);
  EXPECT_THAT(std::string(merged.status().message()), HasSubstr("layer 5"));
}

TEST(MergeRecords, RanksThatHaveTheSameRowsMustAgree) {
  MicroBatchLayout layout = TwoDocuments();
  layout.sequence_parallel = false;
  Replica replica(Mixed(), layout, 2);
  replica.Record({0, 1, 2, 3, 4, 5});
  ASSERT_OK(replica.Merge());
  replica.Break(1, 4, 9);  // Context rank 0, tensor rank 1: documents at local rows 0 and 8, so row 1 of the second.
  const auto merged = replica.Merge({"a", "b"});
  EXPECT_THAT(merged, Fails(absl::StatusCode::kFailedPrecondition, Reason::kConflictingRows));
  const ErrorDetail detail = *GetErrorDetail(merged.status());
  EXPECT_EQ(detail.sample, "b");
  EXPECT_EQ(detail.row, 1);
  EXPECT_EQ(detail.layer, 6);
}

TEST(MergeRecords, RejectsWhatDoesNotFit) {
  Replica replica(Mixed(), TwoDocuments(), 3);
  replica.Record({0, 1, 2, 3, 4, 5});
  const std::vector<RankRecord> records = replica.records();
  EXPECT_THAT(MergeRecords(Geometry::Uniform(9, 8, 2), TwoDocuments(), records),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kGeometryMismatch));
  const RankRecord short_buffer{records[0].layout, records[0].row_map, records[0].indices.subspan(1)};
  EXPECT_THAT(MergeRecords(Mixed(), TwoDocuments(), {short_buffer}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
  const RowMap other{.rows = 3};
  const RankRecord other_map{records[0].layout, other, records[0].indices};
  EXPECT_THAT(MergeRecords(Mixed(), TwoDocuments(), {other_map}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kLength));
}

}  // namespace
}  // namespace routing_replay::trainer
