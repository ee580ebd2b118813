#include "routing_replay/trainer/realign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "proto/wire/block/block.h"
#include "proto/wire/block/cut.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/filler.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;

constexpr int kBlockRows = 64;

// What one test stages and asks for. Ids are kept unpacked, so that expectations need none of the code under test.
struct Scenario {
  Geometry geometry;
  BufferLayout layout;
  std::vector<std::vector<std::vector<uint16_t>>> ids;  // [sequence][slot][row · K + k]
  std::vector<int64_t> lengths;
  std::vector<std::vector<RowRange>> unrecorded;
  std::vector<LocalRow> row_map;
  std::vector<StagedPiece> pieces;
  std::vector<uint8_t> staging;

  RealignInput input() const { return {static_cast<int64_t>(staging.size()), pieces, row_map, unrecorded}; }
  absl::StatusOr<RealignPlan> Plan() const { return PlanRealign(layout, input()); }

  bool Declared(int32_t sequence, int64_t row) const {
    for (RowRange range : unrecorded[sequence]) {
      if (range.contains(row)) return true;
    }
    return false;
  }
  RowState State(size_t local_row) const {
    const LocalRow& row = row_map[local_row];
    if (row.state == RowState::kReplayed && Declared(row.sequence, row.row)) return RowState::kUnrecorded;
    return row.state;
  }
};

int Pick(std::mt19937& random, int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

// Rows `window` of all layers of the geometry as one block; layers that are not local hold zeros.
Block MakeBlock(const Scenario& s, int32_t sequence, RowRange window, Codec codec) {
  Block raw{.rows = window, .codec = Codec::kRaw, .plane_crc32c = {}, .bytes = {}};
  raw.bytes = Buffer(s.geometry.block_bytes(window.size(), Codec::kRaw));
  std::memset(raw.bytes.data(), 0, raw.bytes.size());
  for (int32_t slot = 0; slot < s.layout.num_layers(); ++slot) {
    const LayerRouting& layer = s.layout.layer(slot);
    uint8_t* plane = raw.bytes.data() + s.geometry.plane_offset(s.layout.ordinal(slot), window.size(), Codec::kRaw);
    for (int64_t i = 0; i < window.size() * layer.top_k; ++i) {
      StoreId(plane, layer.id_bytes(), i, s.ids[sequence][slot][window.begin * layer.top_k + i]);
    }
  }
  ComputeCrc(s.geometry, raw);
  return codec == Codec::kRaw ? std::move(raw) : Transcode(s.geometry, raw.view(), codec);
}

// Stages `rows` of all local layers, cut into pieces of several layers wherever bit offsets allow.
void StageRows(Scenario& s, int32_t sequence, const Block& block, RowRange rows, std::mt19937& random) {
  for (int32_t slot = 0; slot < s.layout.num_layers(); ++slot) {
    const int32_t ordinal = s.layout.ordinal(slot);
    const int64_t row = rows.begin - block.rows.begin;
    const int32_t bit_offset = s.geometry.cut_bit_offset(ordinal, row, block.codec);
    const bool joins = slot > 0 && s.pieces.back().bit_offset == bit_offset && Pick(random, 0, 3) > 0;
    if (joins) {
      ++s.pieces.back().layer_count;
    } else {
      for (int skip = Pick(random, 0, 5); skip > 0; --skip) s.staging.push_back(0xAA);
      s.pieces.push_back({.sequence = sequence,
                          .layer_begin = slot,
                          .layer_count = 1,
                          .rows = rows,
                          .codec = block.codec,
                          .bit_offset = bit_offset,
                          .offset = static_cast<int64_t>(s.staging.size())});
    }
    std::vector<uint8_t> cut(s.geometry.cut_bytes(ordinal, row, rows.size(), block.codec));
    EXPECT_OK(CutPlane(s.geometry, block.view(), ordinal, rows, absl::MakeSpan(cut)));
    s.staging.insert(s.staging.end(), cut.begin(), cut.end());
  }
}

// Stages every recorded row of a sequence in random pieces.
void StageSequence(Scenario& s, int32_t sequence, std::mt19937& random) {
  for (RowRange recorded : Subtract({0, s.lengths[sequence]}, s.unrecorded[sequence])) {
    for (RowRange window : SplitAtWindows(recorded, kBlockRows)) {
      const Block block = MakeBlock(s, sequence, window, Pick(random, 0, 1) ? Codec::kPacked : Codec::kRaw);
      for (RowRange rest = window; !rest.empty();) {
        const RowRange part = RowRange::OfSize(rest.begin, Pick(random, 1, static_cast<int>(rest.size())));
        StageRows(s, sequence, block, part, random);
        rest.begin = part.end;
      }
    }
  }
  std::shuffle(s.pieces.begin(), s.pieces.end(), random);
}

// Runs, interleaved sequences, repeated rows, pads and tokens without a route, in any mixture.
std::vector<LocalRow> RandomRowMap(const std::vector<int64_t>& lengths, std::mt19937& random) {
  std::vector<LocalRow> map;
  for (int part = Pick(random, 0, 12); part > 0; --part) {
    const int32_t sequence = Pick(random, 0, static_cast<int>(lengths.size()) - 1);
    const int32_t length = static_cast<int32_t>(lengths[sequence]);
    const int32_t begin = Pick(random, 0, length - 1);
    const int32_t end = Pick(random, begin, length);
    const int copies = Pick(random, 0, 4) == 0 ? 2 : 1;
    for (int32_t row = begin; row < end; ++row) {
      for (int copy = 0; copy < copies; ++copy) map.push_back({sequence, row, RowState::kReplayed});
    }
    if (Pick(random, 0, 1)) map.push_back({sequence, length, RowState::kUnrecorded});
    for (int pad = Pick(random, 0, 5); pad > 0; --pad) map.push_back({-1, -1, RowState::kPad});
  }
  return map;
}

Scenario RandomScenario(std::mt19937& random) {
  const auto geometry = Geometry::Create({.num_layers = 9,
                                          .moe_layer_ids = {1, 2, 3, 5, 6, 8},
                                          .num_experts = {8, 256, 300, 64, 1024, 64},
                                          .top_k = {2, 8, 4, 6, 3, 6}});
  std::vector<int64_t> lengths;
  for (int i = Pick(random, 1, 4); i > 0; --i) lengths.push_back(Pick(random, 1, 300));
  std::vector<LocalRow> map = RandomRowMap(lengths, random);
  std::vector<int32_t> ordinals;
  for (int32_t ordinal = 0; ordinal < 6; ++ordinal) {
    if (Pick(random, 0, 2) > 0) ordinals.push_back(ordinal);
  }
  const auto layout =
      BufferLayout::Create(*geometry, {.ordinals = ordinals, .rows = static_cast<int64_t>(map.size()), .ep_size = 4});
  Scenario s{.geometry = *geometry, .layout = *layout, .lengths = lengths, .row_map = map};
  for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
    auto& slots = s.ids.emplace_back(ordinals.size());
    for (size_t slot = 0; slot < ordinals.size(); ++slot) {
      const LayerRouting& layer = s.layout.layer(static_cast<int32_t>(slot));
      slots[slot].resize(lengths[sequence] * layer.top_k);
      for (uint16_t& id : slots[slot]) id = static_cast<uint16_t>(Pick(random, 0, layer.num_experts - 1));
    }
    s.unrecorded.emplace_back();
    for (int64_t row = Pick(random, 0, 80); row < lengths[sequence]; row += Pick(random, 20, 300)) {
      s.unrecorded.back().push_back({row, std::min(lengths[sequence], row + Pick(random, 1, 10))});
    }
    StageSequence(s, static_cast<int32_t>(sequence), random);
  }
  return s;
}

// Every id of every local row and layer, and every state, looked up one by one.
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

void RunAndExpectExact(const Scenario& s) {
  ASSERT_OK_AND_ASSIGN(const RealignPlan plan, s.Plan());
  std::vector<uint8_t> indices(s.layout.bytes(), 0xCD);
  std::vector<RowState> states(s.layout.rows(), RowState::kPad);
  ASSERT_OK(Realign(s.layout, plan, s.staging, absl::MakeSpan(indices), absl::MakeSpan(states)));
  ExpectExact(s, indices, states);
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

TEST(Realign, RefusesAnyMissingPieceThatTheMapNeeds) {
  std::mt19937 random(3);
  int refused = 0;
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
    ++refused;
    ASSERT_THAT(plan, Fails(absl::StatusCode::kFailedPrecondition, Reason::kNotCommitted));
    const ErrorDetail detail = *GetErrorDetail(plan.status());
    EXPECT_EQ(detail.missing_rows, missing);
    EXPECT_EQ(detail.layer, s.layout.layer(piece.layer_begin).layer_id);
  }
  EXPECT_GT(refused, 20);
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

TEST(Realign, RefusesWhatDoesNotFit) {
  const auto plan = [](auto change) {
    Scenario s = SmallScenario();
    EXPECT_OK(s.Plan());
    change(s);
    return s.Plan();
  };
  const auto field = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  const auto length = Fails(absl::StatusCode::kInvalidArgument, Reason::kLength);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].sequence = 1; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].sequence = -1; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].layer_count = 4; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].layer_count = 0; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].layer_begin = 3; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].layer_begin = -1; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].rows = {4, 4}; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].rows = {-1, 4}; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].rows = {0, int64_t{1} << 62}; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].codec = static_cast<Codec>(3); }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].bit_offset = 1; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].offset = 1; }), length);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].offset = -1; }), length);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces[0].offset = std::numeric_limits<int64_t>::max(); }), length);
  EXPECT_THAT(plan([](Scenario& s) { s.staging.pop_back(); }), length);
  EXPECT_THAT(plan([](Scenario& s) { s.pieces.push_back(s.pieces[0]); }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.row_map.pop_back(); }), length);
  EXPECT_THAT(plan([](Scenario& s) { s.row_map[1].sequence = 1; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.row_map[1].row = -1; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.row_map[1].row = kMaxRows; }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.row_map[1].state = static_cast<RowState>(3); }), field);
  EXPECT_THAT(plan([](Scenario& s) { s.unrecorded[0] = {{2, 3}, {1, 2}}; }), field);
}

TEST(Realign, WritesNothingIntoBuffersOfAnotherSize) {
  const Scenario s = SmallScenario();
  ASSERT_OK_AND_ASSIGN(const RealignPlan plan, s.Plan());
  const auto run = [&](int64_t staging, int64_t indices, int64_t states) {
    std::vector<uint8_t> staged(staging), buffer(indices, 9);
    std::vector<RowState> kinds(states);
    const auto status = Realign(s.layout, plan, staged, absl::MakeSpan(buffer), absl::MakeSpan(kinds));
    EXPECT_TRUE(status.ok() || buffer == std::vector<uint8_t>(indices, 9));
    return status;
  };
  const auto length = Fails(absl::StatusCode::kInvalidArgument, Reason::kLength);
  EXPECT_OK(run(24, s.layout.bytes(), 2));
  EXPECT_THAT(run(23, s.layout.bytes(), 2), length);
  EXPECT_THAT(run(24, s.layout.bytes() - 1, 2), length);
  EXPECT_THAT(run(24, s.layout.bytes(), 3), length);
}

}  // namespace
}  // namespace routing_replay::trainer
