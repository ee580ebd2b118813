#include "routing_replay/trainer/realign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/support/realign_packed.h"
#include "tests/support/realign_scenario.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;

// Looks up every id of every local row and layer, and every state, one by one.
void ExpectExact(const Scenario& s, const std::vector<uint8_t>& indices, const std::vector<RowState>& states) {
  std::vector<int64_t> ordinal_of_row(s.row_map.size(), 0);
  int64_t ordinal = 0;
  for (RowState kind : {RowState::kPad, RowState::kUnrecorded}) {
    for (size_t i = 0; i < s.row_map.size(); ++i) {
      if (s.State(i) == kind) ordinal_of_row[i] = ordinal++;
    }
  }
  for (size_t i = 0; i < s.row_map.size(); ++i) {
    ASSERT_EQ(states[i], s.State(i)) << "local row " << i;
    for (int32_t slot = 0; slot < s.layout.num_layers(); ++slot) {
      const LayerRouting& layer = s.layout.layer(slot);
      const uint8_t* slab = s.layout.slab(absl::MakeConstSpan(indices), slot).data();
      for (int32_t k = 0; k < layer.top_k; ++k) {
        const LocalRow& row = s.row_map[i];
        const int expected = s.State(i) == RowState::kReplayed
                                 ? s.ids[row.sequence][slot][row.row * layer.top_k + k]
                                 : FillerId({layer.num_experts, layer.top_k, s.layout.ep_size()}, ordinal_of_row[i], k,
                                            s.layout.ordinal(slot));
        ASSERT_EQ(LoadId(slab, layer.id_bytes(), static_cast<int64_t>(i) * layer.top_k + k),
                  static_cast<uint32_t>(expected))
            << "local row " << i << " slot " << slot << " k " << k;
      }
    }
  }
}

// Realigns with the packed plan that devices use, in a buffer that is longer than needed.
void ExpectPackedExact(const Scenario& s, const RealignPlan& plan) {
  const PackedPlanSize size = SizeOfPackedPlan(s.layout, plan);
  std::vector<uint8_t> packed(size.bytes + kPackedPlanAlignment, 0xEE);
  ASSERT_OK(PackPlan(s.layout, plan, absl::MakeSpan(packed)));
  std::vector<uint8_t> indices(s.layout.bytes(), 0xCD);
  std::vector<RowState> states(s.layout.rows(), RowState::kPad);
  RealignPacked(packed.data(), s.staging.data(), indices.data(), states.data());
  ExpectExact(s, indices, states);
  EXPECT_EQ(packed[size.bytes], 0xEE);
}

// Moves each piece alone, in the order of arrival.
void ExpectMovedExact(const Scenario& s) {
  const ShownRows rows(s.row_map);
  std::vector<uint8_t> indices(s.layout.bytes(), 0xCD);
  std::vector<RowState> states(s.layout.rows(), RowState::kPad);
  for (const StagedPiece& piece : s.pieces) {
    MovePiece(s.layout, rows, piece, absl::MakeConstSpan(s.staging).subspan(piece.offset), absl::MakeSpan(indices));
  }
  ASSERT_OK_AND_ASSIGN(const RowPlan plan, PlanRows(s.layout, s.input(rows)));
  FinishRealign(s.layout, plan, absl::MakeSpan(indices), absl::MakeSpan(states));
  ExpectExact(s, indices, states);
}

void RunAndExpectExact(const Scenario& s) {
  ASSERT_OK_AND_ASSIGN(const RealignPlan plan, s.Plan());
  std::vector<uint8_t> indices(s.layout.bytes(), 0xCD);
  std::vector<RowState> states(s.layout.rows(), RowState::kPad);
  ASSERT_OK(Realign(s.layout, plan, s.staging, absl::MakeSpan(indices), absl::MakeSpan(states)));
  ExpectExact(s, indices, states);
  ExpectPackedExact(s, plan);
  ExpectMovedExact(s);
  EXPECT_EQ(plan.replayed_rows, std::count(states.begin(), states.end(), RowState::kReplayed));
  EXPECT_EQ(plan.unrecorded_rows, std::count(states.begin(), states.end(), RowState::kUnrecorded));
  EXPECT_EQ(plan.pad_rows, std::count(states.begin(), states.end(), RowState::kPad));
}

TEST(Realign, RandomPiecesAndMapsAreExact) {
  std::mt19937 random(1);
  for (int round = 0; round < 150; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    RunAndExpectExact(RandomScenario(random));
    if (HasFatalFailure()) return;
  }
}

TEST(Realign, SequenceThatFallsBackIsLiveThroughout) {
  std::mt19937 random(2);
  for (int round = 0; round < 20; ++round) {
    Scenario s = RandomScenario(random);
    s.unrecorded[0] = {{0, s.lengths[0]}};
    if (round % 2) std::erase_if(s.pieces, [](const StagedPiece& piece) { return piece.sequence == 0; });
    RunAndExpectExact(s);
    if (HasFatalFailure()) return;
  }
}

TEST(Realign, LastRowsOnFillerUnlessTheirSequenceFallsBack) {
  std::mt19937 random(8);
  for (int round = 0; round < 40; ++round) {
    Scenario s = RandomScenario(random);
    s.last_rows = s.lengths;
    if (round % 2) s.last_rows.back() = -1;
    if (round % 3) s.unrecorded[0] = {{0, kMaxRows}};
    RunAndExpectExact(s);
    if (HasFatalFailure()) return;
  }
}

TEST(Realign, RejectsAnyMissingPieceThatTheMapNeeds) {
  std::mt19937 random(3);
  int rejected = 0;
  for (int round = 0; round < 150; ++round) {
    Scenario s = RandomScenario(random);
    if (s.pieces.empty()) continue;
    const size_t lost = Pick(random, 0, static_cast<int>(s.pieces.size()) - 1);
    const StagedPiece piece = s.pieces[lost];
    s.pieces.erase(s.pieces.begin() + lost);
    std::vector<bool> needed(piece.rows.size(), false);
    for (size_t i = 0; i < s.row_map.size(); ++i) {
      const LocalRow& row = s.row_map[i];
      if (s.State(i) != RowState::kReplayed || row.sequence != piece.sequence) continue;
      if (piece.rows.contains(row.row)) needed[row.row - piece.rows.begin] = true;
    }
    std::vector<RowRange> missing;
    for (int64_t i = 0; i < piece.rows.size(); ++i) {
      if (needed[i]) AppendMerged(missing, RowRange::OfSize(piece.rows.begin + i, 1));
    }
    const auto plan = s.Plan();
    if (missing.empty()) {
      EXPECT_OK(plan);
      continue;
    }
    ++rejected;
    ASSERT_THAT(plan, Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
    const ErrorDetail detail = *GetErrorDetail(plan.status());
    EXPECT_EQ(detail.row, missing.front().begin);
    EXPECT_EQ(detail.layer, s.layout.layer(piece.layer_begin).layer_id);
  }
  EXPECT_GT(rejected, 20);
}

// Three layers, one sequence of four rows, staged in one RAW piece; two local rows.
Scenario SmallScenario() {
  const Geometry geometry = Geometry::Uniform(3, 8, 2);
  const auto layout = BufferLayout::Create(geometry, {.ordinals = {0, 1, 2}, .rows = 2, .ep_size = 1});
  return {.geometry = geometry,
          .layout = *layout,
          .lengths = {4},
          .unrecorded = {{}},
          .row_map = {{0, 1, RowState::kReplayed}, {0, 2, RowState::kReplayed}},
          .pieces = {{.sequence = 0, .layer_begin = 0, .layer_count = 3, .rows = {0, 4}}},
          .staging = std::vector<uint8_t>(24, 1)};
}

TEST(Realign, RejectsWhatDoesNotFit) {
  const auto plan = [](auto change) {
    Scenario s = SmallScenario();
    EXPECT_OK(s.Plan());
    change(s);
    return s.Plan();
  };
  const auto field = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  const auto length = Fails(absl::StatusCode::kInvalidArgument, Reason::kLength);
  EXPECT_THAT(plan([](Scenario& s) { s.row_map.pop_back(); }), length);
  EXPECT_THAT(plan([](Scenario& s) { s.row_map[1].sequence = 1; }), field);
}

TEST(Realign, PackedPlansNeedTheirRoom) {
  const Scenario s = SmallScenario();
  ASSERT_OK_AND_ASSIGN(const RealignPlan plan, s.Plan());
  const PackedPlanSize size = SizeOfPackedPlan(s.layout, plan);
  EXPECT_EQ(size.units, 4);  // Three layers and the states.
  std::vector<uint8_t> packed(size.bytes + 1, 0xEE);
  const auto length = Fails(absl::StatusCode::kInvalidArgument, Reason::kLength);
  EXPECT_THAT(PackPlan(s.layout, plan, absl::MakeSpan(packed).first(size.bytes - 1)), length);
  EXPECT_THAT(PackPlan(s.layout, plan, absl::MakeSpan(packed).subspan(1)), length);
  EXPECT_EQ(packed, std::vector<uint8_t>(size.bytes + 1, 0xEE));
  EXPECT_OK(PackPlan(s.layout, plan, absl::MakeSpan(packed).first(size.bytes)));
}

TEST(Realign, WritesNothingIntoBuffersOfAnotherSize) {
  const Scenario s = SmallScenario();
  ASSERT_OK_AND_ASSIGN(const RealignPlan plan, s.Plan());
  const auto run = [&](int64_t indices, int64_t states) {
    std::vector<uint8_t> buffer(indices, 9);
    std::vector<RowState> kinds(states);
    const auto status = Realign(s.layout, plan, s.staging, absl::MakeSpan(buffer), absl::MakeSpan(kinds));
    EXPECT_TRUE(status.ok() || buffer == std::vector<uint8_t>(indices, 9));
    return status;
  };
  const auto length = Fails(absl::StatusCode::kInvalidArgument, Reason::kLength);
  EXPECT_OK(run(s.layout.bytes(), 2));
  EXPECT_THAT(run(s.layout.bytes() - 1, 2), length);
  EXPECT_THAT(run(s.layout.bytes(), 3), length);
}

}  // namespace
}  // namespace routing_replay::trainer
