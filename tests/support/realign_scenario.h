// Random input for realign: sequences of random ids staged in random pieces, and row maps of all kinds.
#ifndef TESTS_SUPPORT_REALIGN_SCENARIO_H_
#define TESTS_SUPPORT_REALIGN_SCENARIO_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "proto/wire/block/block.h"
#include "routing_replay/trainer/realign.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {

inline constexpr int kBlockRows = 64;

// Input of one test of realign. Ids are kept unpacked, so that expected values do not need the code under test.
struct Scenario {
  Geometry geometry;
  BufferLayout layout;
  std::vector<std::vector<std::vector<uint16_t>>> ids;  // [sequence][slot][row · K + k]
  std::vector<int64_t> lengths;
  std::vector<std::vector<RowRange>> unrecorded;
  std::vector<int64_t> last_rows;  // Like RealignInput::last_rows.
  std::vector<LocalRow> row_map;
  std::vector<StagedPiece> pieces;
  std::vector<uint8_t> staging;

  RealignInput input(const ShownRows& rows) const { return {pieces, rows, unrecorded, last_rows}; }
  absl::StatusOr<RealignPlan> Plan() const { return PlanRealign(layout, input(ShownRows(row_map))); }

  bool Declared(int32_t sequence, int64_t row) const {
    for (RowRange range : unrecorded[sequence]) {
      if (range.contains(row)) return true;
    }
    return false;
  }
  RowState State(size_t local_row) const {
    const LocalRow& row = row_map[local_row];
    if (row.state == RowState::kReplayed && Declared(row.sequence, row.row)) return RowState::kUnrecorded;
    const bool last = !last_rows.empty() && row.state == RowState::kUnrecorded && row.row == last_rows[row.sequence];
    if (last && !Declared(row.sequence, row.row)) return RowState::kPad;
    return row.state;
  }
};

inline int Pick(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// Rows `window` of all layers of the geometry as one block; layers that are not local hold zeros.
inline Block MakeBlock(const Scenario& s, int32_t sequence, RowRange window, Codec codec) {
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
  return codec == Codec::kRaw ? std::move(raw) : *Merge(s.geometry, {{raw.view(), window}}, codec);
}

// Stages `rows` of all local layers. At random, a layer joins the piece of the layer before it, if the bit offsets of
// both are equal.
inline void StageRows(Scenario& s, int32_t sequence, const Block& block, RowRange rows, std::mt19937& random) {
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
inline void StageSequence(Scenario& s, int32_t sequence, std::mt19937& random) {
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

// A random mixture of runs, interleaved sequences, repeated rows, pads and tokens without a route.
inline std::vector<LocalRow> RandomRowMap(const std::vector<int64_t>& lengths, std::mt19937& random) {
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

inline Scenario RandomScenario(std::mt19937& random) {
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

}  // namespace routing_replay::trainer

#endif  // TESTS_SUPPORT_REALIGN_SCENARIO_H_
