#include "routing_replay/trainer/rows.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::ElementsAre;

// Returns a word for each local row: "0:3" if it replays row 3 of sequence 0, "0:3u" if that row is unrecorded, "." for
// a pad.
std::vector<std::string> Words(const MicroBatchLayout& layout, const RowRank& rank) {
  const auto map = BuildRowMap(layout, rank);
  if (!map.ok()) return {map.status().ToString()};
  std::vector<std::string> words;
  for (const LocalRow& row : ExpandRowMap(*map)) {
    words.push_back(row.state == RowState::kPad
                        ? "."
                        : absl::StrCat(row.sequence, ":", row.row, row.state == RowState::kUnrecorded ? "u" : ""));
  }
  return words;
}

// For a layout with one sequence: returns the number of the row that each local row shows, -1 for a pad.
std::vector<int64_t> Numbers(const MicroBatchLayout& layout, const RowRank& rank) {
  const auto map = BuildRowMap(layout, rank);
  EXPECT_OK(map);
  std::vector<int64_t> rows;
  if (!map.ok()) return rows;
  for (const LocalRow& row : ExpandRowMap(*map)) rows.push_back(row.state == RowState::kPad ? -1 : row.row);
  return rows;
}

std::vector<int64_t> Join(std::initializer_list<RowRange> ranges) {
  std::vector<int64_t> rows;
  for (const RowRange& range : ranges) {
    for (int64_t row = range.begin; row < range.end; ++row) rows.push_back(row);
  }
  return rows;
}

MicroBatchLayout OneDocument(int64_t tokens, int64_t padded, int32_t cp_size) {
  return {.sequences = {{.tokens = tokens, .recorded_rows = tokens}},
          .cu_seqlens_padded = {0, padded},
          .total_rows = padded,
          .cp_size = cp_size};
}

TEST(BuildRowMap, ZigzagOfOneSequence) {
  EXPECT_EQ(Numbers(OneDocument(16, 16, 2), {.cp_rank = 0}), Join({{0, 4}, {12, 16}}));
  EXPECT_EQ(Numbers(OneDocument(16, 16, 2), {.cp_rank = 1}), Join({{4, 12}}));
  EXPECT_EQ(Numbers(OneDocument(16, 16, 4), {.cp_rank = 0}), Join({{0, 2}, {14, 16}}));
  EXPECT_EQ(Numbers(OneDocument(16, 16, 4), {.cp_rank = 1}), Join({{2, 4}, {12, 14}}));
  EXPECT_EQ(Numbers(OneDocument(16, 16, 4), {.cp_rank = 2}), Join({{4, 6}, {10, 12}}));
  EXPECT_EQ(Numbers(OneDocument(16, 16, 4), {.cp_rank = 3}), Join({{6, 10}}));
}

TEST(BuildRowMap, ZigzagPerDocumentAndOverTheWholeStream) {
  MicroBatchLayout layout{
      .sequences = {{8, 8}, {12, 12}}, .cu_seqlens_padded = {0, 8, 20}, .total_rows = 20, .cp_size = 2};
  EXPECT_THAT(Words(layout, {.cp_rank = 0}),
              ElementsAre("0:0", "0:1", "0:6", "0:7", "1:0", "1:1", "1:2", "1:9", "1:10", "1:11"));
  EXPECT_THAT(Words(layout, {.cp_rank = 1}),
              ElementsAre("0:2", "0:3", "0:4", "0:5", "1:3", "1:4", "1:5", "1:6", "1:7", "1:8"));
  layout.partition = Partition::kZigzagPerSequence;
  EXPECT_THAT(Words(layout, {.cp_rank = 0}),
              ElementsAre("0:0", "0:1", "0:2", "0:3", "0:4", "1:7", "1:8", "1:9", "1:10", "1:11"));
  EXPECT_THAT(Words(layout, {.cp_rank = 1}),
              ElementsAre("0:5", "0:6", "0:7", "1:0", "1:1", "1:2", "1:3", "1:4", "1:5", "1:6"));
}

TEST(BuildRowMap, RectangleIsSequenceMajorAtTheRouter) {
  const MicroBatchLayout layout{.format = TokenFormat::kBshd,
                                .sequences = {{8, 8}, {8, 8}},
                                .batch_size = 2,
                                .padded_length = 8,
                                .partition = Partition::kZigzagPerSequence,
                                .cp_size = 2,
                                .tp_size = 2,
                                .sequence_parallel = true};
  EXPECT_THAT(Words(layout, {.cp_rank = 0, .tp_rank = 0}), ElementsAre("0:0", "1:0", "0:1", "1:1"));
  EXPECT_THAT(Words(layout, {.cp_rank = 0, .tp_rank = 1}), ElementsAre("0:6", "1:6", "0:7", "1:7"));
  EXPECT_THAT(Words(layout, {.cp_rank = 1, .tp_rank = 0}), ElementsAre("0:2", "1:2", "0:3", "1:3"));
  EXPECT_THAT(Words(layout, {.cp_rank = 1, .tp_rank = 1}), ElementsAre("0:4", "1:4", "0:5", "1:5"));
}

TEST(BuildRowMap, FillerCanGatherOnOneRank) {
  const MicroBatchLayout layout{.sequences = {{.tokens = 13, .recorded_rows = 12}},
                                .cu_seqlens_padded = {0, 16},
                                .total_rows = 16,
                                .cp_size = 2,
                                .tp_size = 2,
                                .sequence_parallel = true};
  EXPECT_THAT(Words(layout, {.cp_rank = 0, .tp_rank = 0}), ElementsAre("0:0", "0:1", "0:2", "0:3"));
  EXPECT_THAT(Words(layout, {.cp_rank = 0, .tp_rank = 1}), ElementsAre("0:12u", ".", ".", "."));
  EXPECT_THAT(Words(layout, {.cp_rank = 1, .tp_rank = 0}), ElementsAre("0:4", "0:5", "0:6", "0:7"));
  EXPECT_THAT(Words(layout, {.cp_rank = 1, .tp_rank = 1}), ElementsAre("0:8", "0:9", "0:10", "0:11"));
  ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(layout, {.cp_rank = 0, .tp_rank = 1}));
  EXPECT_EQ(map.rows, 4);
  EXPECT_EQ(map.replayed_rows, 0);
  EXPECT_EQ(map.unrecorded_rows, 1);
  EXPECT_EQ(map.pad_rows(), 3);
}

TEST(BuildRowMap, PaddedBySlimeAndByVerl) {
  EXPECT_EQ(Numbers(OneDocument(10, 12, 2), {.cp_rank = 0}), (std::vector<int64_t>{0, 1, 2, 9, -1, -1}));
  EXPECT_EQ(Numbers(OneDocument(10, 12, 2), {.cp_rank = 1}), Join({{3, 9}}));
  EXPECT_EQ(Numbers(OneDocument(10, 16, 2), {.cp_rank = 0}), (std::vector<int64_t>{0, 1, 2, 3, -1, -1, -1, -1}));
  EXPECT_EQ(Numbers(OneDocument(10, 16, 2), {.cp_rank = 1}), (std::vector<int64_t>{4, 5, 6, 7, 8, 9, -1, -1}));
}

TEST(BuildRowMap, ContiguousStreamAndSequences) {
  MicroBatchLayout stream{.sequences = {{3, 2}, {4, 3}},
                          .cu_seqlens_padded = {0, 3, 7, 8},
                          .total_rows = 8,
                          .partition = Partition::kContiguous,
                          .cp_size = 2};
  EXPECT_THAT(Words(stream, {.cp_rank = 0}), ElementsAre("0:0", "0:1", "0:2u", "1:0"));
  EXPECT_THAT(Words(stream, {.cp_rank = 1}), ElementsAre("1:1", "1:2", "1:3u", "."));
  const MicroBatchLayout rectangle{.format = TokenFormat::kBshd,
                                   .sequences = {{4, 3}},
                                   .batch_size = 2,
                                   .padded_length = 4,
                                   .partition = Partition::kContiguousPerSequence,
                                   .cp_size = 2,
                                   .row_order = RowOrder::kBatchMajor};
  EXPECT_THAT(Words(rectangle, {.cp_rank = 1}), ElementsAre("0:2", "0:3u", ".", "."));
}

TEST(BuildRowMap, TargetRowsPadAtTheEnd) {
  MicroBatchLayout layout = OneDocument(4, 4, 1);
  layout.target_rows = 6;
  EXPECT_THAT(Words(layout, {}), ElementsAre("0:0", "0:1", "0:2", "0:3", ".", "."));
  layout.target_rows = 3;
  EXPECT_THAT(BuildRowMap(layout, {}), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

TEST(BuildRowMap, PaddingOnTheLeft) {
  MicroBatchLayout layout{.format = TokenFormat::kBshd,
                          .sequences = {{.tokens = 3, .recorded_rows = 2, .first_row = 5},
                                        {.tokens = 2, .recorded_rows = 1, .first_row = 2}},
                          .batch_size = 2,
                          .padded_length = 8,
                          .partition = Partition::kZigzagPerSequence,
                          .cp_size = 2,
                          .row_order = RowOrder::kBatchMajor};
  EXPECT_THAT(Words(layout, {.cp_rank = 0}), ElementsAre(".", ".", "0:1", "0:2u", ".", ".", ".", "."));
  EXPECT_THAT(Words(layout, {.cp_rank = 1}), ElementsAre(".", ".", ".", "0:0", "1:0", "1:1u", ".", "."));
  layout.sequences[0].first_row = 6;
  EXPECT_THAT(BuildRowMap(layout, {}), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

TEST(BuildRowMap, SamplesOfAStreamAreUnflattened) {
  // Two samples of four rows, one with two documents.
  MicroBatchLayout layout{.sequences = {{2, 1}, {2, 2}, {4, 3}},
                          .cu_seqlens_padded = {0, 2, 4, 8},
                          .total_rows = 8,
                          .tokens_per_sample = 4};
  EXPECT_THAT(Words(layout, {}), ElementsAre("0:0", "2:0", "0:1u", "2:1", "1:0", "2:2", "1:1", "2:3u"));
  // The rank has only one sample, so nothing is un-flattened.
  layout.tokens_per_sample = 8;
  EXPECT_THAT(Words(layout, {}), ElementsAre("0:0", "0:1u", "1:0", "1:1", "2:0", "2:1", "2:2", "2:3u"));
  layout.tokens_per_sample = 4;
  layout.cp_size = 2;
  layout.partition = Partition::kZigzagPerSequence;
  EXPECT_THAT(Words(layout, {.cp_rank = 1}), ElementsAre("1:0", "1:1", "2:0", "2:1"));
}

TEST(BuildRowMap, WithoutSequenceParallelismTensorRanksSeeTheSame) {
  MicroBatchLayout layout = OneDocument(5, 5, 1);
  layout.tp_size = 2;
  EXPECT_EQ(Numbers(layout, {.tp_rank = 0}), Join({{0, 5}}));
  EXPECT_EQ(Numbers(layout, {.tp_rank = 1}), Join({{0, 5}}));
}

TEST(BuildRowMap, OnlyDocumentsOfPaddingMayBeOdd) {
  MicroBatchLayout layout{.sequences = {{4, 3}}, .cu_seqlens_padded = {0, 4, 10}, .total_rows = 10, .cp_size = 2};
  EXPECT_THAT(Words(layout, {.cp_rank = 0}), ElementsAre("0:0", "0:3u", ".", ".", "."));
  layout.sequences.push_back({.tokens = 0, .recorded_rows = 0});
  EXPECT_THAT(Words(layout, {.cp_rank = 1}), ElementsAre("0:1", "0:2", ".", ".", "."));
  layout.sequences[1] = {.tokens = 1, .recorded_rows = 0};
  EXPECT_THAT(BuildRowMap(layout, {}), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

TEST(BuildRowMap, NothingAtAll) {
  const MicroBatchLayout layout{.cu_seqlens_padded = {0}, .total_rows = 0, .cp_size = 2};
  EXPECT_TRUE(Words(layout, {}).empty());
}

struct Rejection {
  std::string words;
  Reason reason;
  MicroBatchLayout layout;
  RowRank rank;
};

void AddStreamRejections(std::vector<Rejection>& list) {
  const MicroBatchLayout base = OneDocument(8, 8, 2);
  const auto add = [&](const char* words, Reason reason, auto change) {
    list.push_back({words, reason, base, {}});
    change(list.back());
  };
  add("ends at 8, the stream has 16", Reason::kShape, [](Rejection& r) { r.layout.total_rows = 16; });
  add("must start at 0", Reason::kShape, [](Rejection& r) { r.layout.cu_seqlens_padded = {1, 8}; });
  add("must start at 0", Reason::kShape, [](Rejection& r) { r.layout.cu_seqlens_padded = {}; });
  add("descends from 8 to 4", Reason::kShape, [](Rejection& r) { r.layout.cu_seqlens_padded = {0, 8, 4, 8}; });
  add("0 documents for 1", Reason::kShape, [](Rejection& r) {
    r.layout.cu_seqlens_padded = {0};
    r.layout.total_rows = 0;
  });
  add("multiple of 2 x cp_size = 4", Reason::kShape, [](Rejection& r) {
    r.layout.cu_seqlens_padded = {0, 10};
    r.layout.total_rows = 10;
  });
  add("multiple of cp_size = 2", Reason::kShape, [](Rejection& r) {
    r.layout.cu_seqlens_padded = {0, 9};
    r.layout.total_rows = 9;
    r.layout.partition = Partition::kContiguous;
  });
  add("has 9 recorded rows but only 8 tokens", Reason::kShape,
      [](Rejection& r) { r.layout.sequences[0].recorded_rows = 9; });
  add("9 tokens do not fit into 8 padded rows", Reason::kShape, [](Rejection& r) { r.layout.sequences[0].tokens = 9; });
  add("more than 4194304", Reason::kField, [](Rejection& r) { r.layout.sequences[0].recorded_rows = 5 << 20; });
  add("negative", Reason::kField, [](Rejection& r) { r.layout.sequences[0].recorded_rows = -1; });
  add("not a multiple of tp_size = 3", Reason::kShape, [](Rejection& r) {
    r.layout.tp_size = 3;
    r.layout.sequence_parallel = true;
  });
  add("not a multiple of 3: the MoE layer cannot", Reason::kShape, [](Rejection& r) {
    r.layout.cp_size = 1;
    r.layout.tokens_per_sample = 3;
  });
  add("tokens_per_sample", Reason::kField, [](Rejection& r) { r.layout.tokens_per_sample = 0; });
  add("8 tokens from row 1 on do not fit into 8 padded rows", Reason::kShape,
      [](Rejection& r) { r.layout.sequences[0].first_row = 1; });
  add("negative", Reason::kField, [](Rejection& r) { r.layout.sequences[0].first_row = -1; });
  add("cp_size", Reason::kField, [](Rejection& r) { r.layout.cp_size = 0; });
  add("rank.cp", Reason::kField, [](Rejection& r) { r.rank.cp_rank = 2; });
  add("rank.tp", Reason::kField, [](Rejection& r) { r.rank.tp_rank = -1; });
  add("total_rows", Reason::kField, [](Rejection& r) { r.layout.total_rows = int64_t{1} << 60; });
  add("only for BSHD", Reason::kField, [](Rejection& r) { r.layout.partition = Partition::kContiguousPerSequence; });
}

void AddRectangleRejections(std::vector<Rejection>& list) {
  const MicroBatchLayout base{.format = TokenFormat::kBshd,
                              .sequences = {{4, 4}},
                              .batch_size = 1,
                              .padded_length = 8,
                              .partition = Partition::kZigzagPerSequence,
                              .cp_size = 2};
  const auto add = [&](const char* words, Reason reason, auto change) {
    list.push_back({words, reason, base, {}});
    change(list.back());
  };
  add("not a multiple of tp_size = 8", Reason::kShape, [](Rejection& r) {
    r.layout.tp_size = 8;
    r.layout.sequence_parallel = true;
  });
  add("are only for THD", Reason::kField, [](Rejection& r) { r.layout.partition = Partition::kContiguous; });
  add("are only for THD", Reason::kField, [](Rejection& r) { r.layout.partition = Partition::kZigzagPerDocument; });
  add("rectangle", Reason::kField, [](Rejection& r) { r.layout.batch_size = int64_t{1} << 62; });
  add("rectangle", Reason::kField, [](Rejection& r) { r.layout.batch_size = 0; });
  add("only for a packed stream", Reason::kField, [](Rejection& r) { r.layout.tokens_per_sample = 4; });
  add("is 1, but the batch has 2 sequences", Reason::kShape, [](Rejection& r) { r.layout.sequences.push_back({}); });
}

TEST(BuildRowMap, RejectionsNameTheNumbers) {
  std::vector<Rejection> rejections;
  AddStreamRejections(rejections);
  AddRectangleRejections(rejections);
  for (const Rejection& rejection : rejections) {
    const auto map = BuildRowMap(rejection.layout, rejection.rank);
    EXPECT_THAT(map, Fails(absl::StatusCode::kInvalidArgument, rejection.reason)) << rejection.words;
    EXPECT_THAT(std::string(map.status().message()), ::testing::HasSubstr(rejection.words));
  }
}

TEST(BuildRowMap, MillionTokensStayCompact) {
  MicroBatchLayout layout{.cu_seqlens_padded = {0}, .cp_size = 4};
  for (int i = 0; i < 256; ++i) {
    layout.sequences.push_back({.tokens = 8190, .recorded_rows = 8189});
    layout.cu_seqlens_padded.push_back(layout.cu_seqlens_padded.back() + 8192);
  }
  layout.total_rows = layout.cu_seqlens_padded.back();
  ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(layout, {.cp_rank = 0}));
  EXPECT_EQ(map.rows, layout.total_rows / 4);
  EXPECT_LE(map.runs.size(), 3u * 256);
  EXPECT_EQ(ExpandRowMap(map).size(), static_cast<size_t>(map.rows));
}

}  // namespace
}  // namespace routing_replay::trainer
