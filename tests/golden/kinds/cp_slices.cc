// cp_slices: the positions that each context-parallel rank keeps.
#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/rows.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {
namespace {

using trainer::MicroBatchLayout;

// The file has only padded lengths, so every position counts as a token.
MicroBatchLayout PackedLayout(const Json& input) {
  MicroBatchLayout layout{.cu_seqlens_padded = input.at("cu_seqlens").get<std::vector<int64_t>>(),
                          .partition = trainer::Partition::kZigzagPerDocument};
  layout.total_rows = layout.cu_seqlens_padded.back();
  for (size_t i = 1; i < layout.cu_seqlens_padded.size(); ++i) {
    const int64_t tokens = layout.cu_seqlens_padded[i] - layout.cu_seqlens_padded[i - 1];
    layout.sequences.push_back({.tokens = tokens, .recorded_rows = tokens});
  }
  return layout;
}

MicroBatchLayout RectangleLayout(const Json& input) {
  const int64_t length = input.at("seq_length").get<int64_t>();
  MicroBatchLayout layout{.format = trainer::TokenFormat::kBshd,
                          .batch_size = input.value("batch_size", int64_t{1}),
                          .padded_length = length,
                          .partition = trainer::Partition::kZigzagPerSequence,
                          .row_order = trainer::RowOrder::kBatchMajor};
  layout.sequences.assign(layout.batch_size, {.tokens = length, .recorded_rows = length});
  return layout;
}

// Returns the positions that one rank keeps. For a packed stream this is one list of positions in the stream; for a
// rectangle, one list per sequence, with positions in the flattened batch.
Json PositionsOf(const MicroBatchLayout& layout, const std::vector<trainer::LocalRow>& rows) {
  Json stream = Json::array();
  Json batch = Json::array();
  for (int64_t b = 0; b < layout.batch_size; ++b) batch.push_back(Json::array());
  for (const trainer::LocalRow& row : rows) {
    if (layout.format == trainer::TokenFormat::kThd) {
      stream.push_back(layout.cu_seqlens_padded[row.sequence] + row.row);
    } else {
      batch.at(row.sequence).push_back(row.sequence * layout.padded_length + row.row);
    }
  }
  return layout.format == trainer::TokenFormat::kThd ? stream : batch;
}

Outcome RunCpSlices(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const bool packed = input.at("format") == "thd";
  MicroBatchLayout layout = packed ? PackedLayout(input) : RectangleLayout(input);
  layout.cp_size = input.at("cp_size").get<int32_t>();
  const bool raises = !expect.at("raises").is_null();
  for (int32_t r = 0; r < layout.cp_size; ++r) {
    const auto map = trainer::BuildRowMap(layout, {.cp_rank = r});
    if (map.ok() == raises) return Failed(raises ? "accepted, expected a rejection" : map.status().ToString());
    if (raises) continue;
    const Json positions = PositionsOf(layout, trainer::ExpandRowMap(*map));
    const Json& ours = packed ? positions : positions.at(0);
    const Json& expected = expect.at("positions_per_rank").at(r);
    if (ours != expected)
      return Failed(absl::StrCat("rank ", r, " keeps ", ours.dump(), ", expected ", expected.dump()));
    if (expect.contains("token_rows_per_rank") && positions != expect["token_rows_per_rank"].at(r)) {
      return Failed(absl::StrCat("rank ", r, " keeps tokens ", positions.dump()));
    }
  }
  return Passed();
}

}  // namespace

Kind CpSlicesKind() { return {{"cp_slices"}, RunCpSlices}; }

}  // namespace routing_replay::golden
