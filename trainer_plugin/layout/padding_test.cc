// Worked examples and known traps of each policy, and comparisons of a trainer's layout with a prediction.
#include "routing_replay/trainer/padding.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

UnpaddedBatch Batch(const std::vector<int64_t>& lengths, int32_t cp_size, int32_t tp_size, bool sequence_parallel) {
  UnpaddedBatch batch{.sequences = {}, .cp_size = cp_size, .tp_size = tp_size, .sequence_parallel = sequence_parallel};
  for (const int64_t tokens : lengths) batch.sequences.push_back({.tokens = tokens, .recorded_rows = tokens - 1});
  return batch;
}

// The rows of the only sequence that a CP rank has, -1 for padding.
std::vector<int64_t> RowsOf(const MicroBatchLayout& layout, int32_t cp_rank) {
  const auto map = BuildRowMap(layout, {.cp_rank = cp_rank});
  EXPECT_OK(map);
  std::vector<int64_t> rows;
  if (!map.ok()) return rows;
  for (const LocalRow& row : ExpandRowMap(*map)) rows.push_back(row.state == RowState::kPad ? -1 : row.row);
  return rows;
}

TEST(Padding, SlimePadsTheStreamAndVerlTheSample) {
  ASSERT_OK_AND_ASSIGN(const auto slime,
                       PredictPadding(Batch({10}, 2, 1, false), SlimePadding{.pad_size_multiplier = 1}));
  EXPECT_THAT(slime.layout.cu_seqlens_padded, ElementsAre(0, 12));
  EXPECT_THAT(RowsOf(slime.layout, 0), ElementsAre(0, 1, 2, 9, -1, -1));
  EXPECT_THAT(RowsOf(slime.layout, 1), ElementsAre(3, 4, 5, 6, 7, 8));
  UnpaddedBatch batch = Batch({10}, 2, 2, true);
  ASSERT_OK_AND_ASSIGN(auto verl, PredictPadding(batch, VerlPadding{}));
  EXPECT_THAT(verl.layout.cu_seqlens_padded, ElementsAre(0, 16));
  verl.layout.sequence_parallel = false;
  EXPECT_THAT(RowsOf(verl.layout, 0), ElementsAre(0, 1, 2, 3, -1, -1, -1, -1));
  EXPECT_THAT(RowsOf(verl.layout, 1), ElementsAre(4, 5, 6, 7, 8, 9, -1, -1));
}

TEST(Padding, TailOfSlimeMayBeOdd) {
  // With an odd multiplier, the padding document of 6 rows is not a multiple of 2 x cp_size. Padding need not be one.
  ASSERT_OK_AND_ASSIGN(const auto prediction,
                       PredictPadding(Batch({4}, 2, 1, false), SlimePadding{.pad_size_multiplier = 5}));
  EXPECT_THAT(prediction.layout.cu_seqlens_padded, ElementsAre(0, 4, 10));
  EXPECT_THAT(RowsOf(prediction.layout, 1), ElementsAre(1, 2, -1, -1, -1));
}

TEST(Padding, ContiguousStreamOfSlime) {
  ASSERT_OK_AND_ASSIGN(
      const auto prediction,
      PredictPadding(Batch({3, 2}, 2, 1, false), SlimePadding{.pad_size_multiplier = 4, .allgather_cp = true}));
  EXPECT_EQ(prediction.layout.partition, Partition::kContiguous);
  EXPECT_THAT(prediction.layout.cu_seqlens_padded, ElementsAre(0, 3, 5, 8));
}

TEST(Padding, VerlFp8) {
  ASSERT_OK_AND_ASSIGN(const auto prediction, PredictPadding(Batch({100, 200}, 1, 2, true), VerlPadding{.fp8 = true}));
  EXPECT_THAT(prediction.layout.cu_seqlens_padded, ElementsAre(0, 112, 512));
  // With CP, the last sample's tokens end before the first chunk of the last rank, because padding stretches the
  // sample.
  ASSERT_OK_AND_ASSIGN(const auto short_last, PredictPadding(Batch({3, 8, 5}, 2, 1, false), VerlPadding{.fp8 = true}));
  EXPECT_THAT(short_last.layout.cu_seqlens_padded, ElementsAre(0, 16, 32, 512));
  EXPECT_OK(BuildRowMap(short_last.layout, {.cp_rank = 1}));
}

TEST(Padding, VerlContiguousHasALeastWindow) {
  const VerlPadding options{.contiguous = true, .min_local_rows = 5};
  ASSERT_OK_AND_ASSIGN(const auto prediction, PredictPadding(Batch({1}, 2, 1, false), options));
  EXPECT_EQ(prediction.layout.total_rows, 10);
  // There are 5 local rows, and tp_size = 2 does not divide 5.
  ASSERT_OK_AND_ASSIGN(const auto odd, PredictPadding(Batch({1}, 2, 2, true), options));
  EXPECT_THAT(BuildRowMap(odd.layout, {}), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

TEST(Padding, RectanglesAreSequenceMajor) {
  const UnpaddedBatch two = Batch({3, 4}, 1, 1, false);
  for (const PaddingPolicy& policy :
       {PaddingPolicy(MilesPadding{.packed = false}), PaddingPolicy(SkyRlPadding{.packed = false}),
        PaddingPolicy(MsSwiftPadding{.padding_free = false})}) {
    ASSERT_OK_AND_ASSIGN(const auto prediction, PredictPadding(two, policy));
    EXPECT_EQ(prediction.layout.row_order, RowOrder::kSequenceMajor);
  }
}

TEST(Padding, MilesRectangleMayNotDivide) {
  const MilesPadding options{.packed = false, .pad_size_multiplier = 1, .allgather_cp = true};
  ASSERT_OK_AND_ASSIGN(const auto prediction, PredictPadding(Batch({1}, 2, 2, true), options));
  EXPECT_EQ(prediction.layout.padded_length, 2);
  EXPECT_THAT(BuildRowMap(prediction.layout, {}), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

struct PaddingTo {
  Fp8Recipe recipe;
  const char* format;
  bool fused;
  int32_t tp;
  int32_t cp;
  std::optional<int64_t> expected;
};

TEST(Padding, MsSwiftTable) {
  const PaddingTo table[] = {
      {Fp8Recipe::kNone, "", false, 4, 1, 4},       {Fp8Recipe::kNone, "", false, 1, 4, 4},
      {Fp8Recipe::kNone, "", false, 2, 4, 8},       {Fp8Recipe::kBlockwise, "", false, 1, 1, 128},
      {Fp8Recipe::kMxfp8, "", false, 8, 2, 512},    {Fp8Recipe::kNone, "e4m3", false, 1, 1, 16},
      {Fp8Recipe::kNone, "", true, 1, 1, 64},       {Fp8Recipe::kNone, "", true, 1, 4, 256},
      {Fp8Recipe::kBlockwise, "", true, 2, 1, 256}, {Fp8Recipe::kNone, "e4m3", true, 8, 1, 512},
      {Fp8Recipe::kNone, "", false, 3, 2, 6},       {Fp8Recipe::kNone, "", false, 1, 1, std::nullopt},
  };
  for (const PaddingTo& row : table) {
    const UnpaddedBatch batch = Batch({4}, row.cp, row.tp, row.tp > 1);
    const MsSwiftPadding options{.fp8_recipe = row.recipe, .fp8_format = row.format, .fused_attention = row.fused};
    EXPECT_EQ(MsSwiftPaddingTo(batch, options), row.expected)
        << static_cast<int>(row.recipe) << row.format << row.tp << row.cp;
  }
}

TEST(Padding, MsSwiftTrap) {
  EXPECT_THAT(PredictPadding(Batch({4}, 2, 3, true), MsSwiftPadding{}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(
      std::string(PredictPadding(Batch({4}, 2, 3, true), MsSwiftPadding{}).status().message()),
      HasSubstr("get_padding_to gives 6, not a multiple of 2 x cp_size = 4: cu_seqlens end at 4, the stream has 6"));
  // These 12 rows can be divided.
  ASSERT_OK_AND_ASSIGN(const auto prediction, PredictPadding(Batch({12}, 2, 3, true), MsSwiftPadding{}));
  EXPECT_OK(BuildRowMap(prediction.layout, {}));
}

TEST(Padding, MsSwiftTailIsOfTheSmallestDocuments) {
  ASSERT_OK_AND_ASSIGN(const auto one, PredictPadding(Batch({5}, 1, 4, true), MsSwiftPadding{}));
  EXPECT_THAT(one.layout.cu_seqlens_padded, ElementsAre(0, 5, 6, 7, 8));
  ASSERT_OK_AND_ASSIGN(const auto two, PredictPadding(Batch({5}, 2, 1, true), MsSwiftPadding{.fp8_format = "e4m3"}));
  EXPECT_THAT(two.layout.cu_seqlens_padded, ElementsAre(0, 8, 12, 16, 20, 24, 28, 32));
}

TEST(Padding, HybridEpOverridesTheOtherRules) {
  MsSwiftPadding options{.fused_attention = true,
                         .pull_request_8393 = true,
                         .dispatcher = "hybridep",
                         .seq_length = 100,
                         .max_length = 50};
  const UnpaddedBatch batch = Batch({10}, 2, 2, true);
  EXPECT_EQ(MsSwiftPaddingTo(batch, options), 100);
  ASSERT_OK_AND_ASSIGN(const auto prediction, PredictPadding(batch, options));
  EXPECT_EQ(prediction.layout.total_rows, 100);
  // The length need not be a multiple of what CP and SP require: 100 is not a multiple of 2 · cp · tp here.
  ASSERT_OK_AND_ASSIGN(const auto uneven, PredictPadding(Batch({10}, 2, 8, true), options));
  EXPECT_THAT(BuildRowMap(uneven.layout, {}), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  options.seq_length = 102;
  EXPECT_THAT(PredictPadding(batch, options), Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  options.seq_length.reset();
  EXPECT_EQ(MsSwiftPaddingTo(batch, options), 50);
  options.max_length.reset();
  EXPECT_EQ(MsSwiftPaddingTo(batch, options), 256);
}

TEST(Padding, NemoRlPipelineStretchesEveryPack) {
  const NemoRlPadding options{
      .make_sequence_length_divisible_by = 8, .pipeline_size = 2, .max_packed_length_in_batch = 24};
  ASSERT_OK_AND_ASSIGN(const auto prediction, PredictPadding(Batch({2}, 2, 1, false), options));
  EXPECT_THAT(prediction.layout.cu_seqlens_padded, ElementsAre(0, 24));
  EXPECT_THAT(PredictPadding(Batch({5, 3}, 2, 1, false), NemoRlPadding{.make_sequence_length_divisible_by = 2}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
  EXPECT_THAT(PredictPadding(Batch({30}, 2, 1, false), options),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

TEST(Padding, MegatronPadsForItsRanks) {
  ASSERT_OK_AND_ASSIGN(const auto least, PredictPadding(Batch({5, 3}, 2, 2, true), MegatronPadding{}));
  EXPECT_THAT(least.layout.cu_seqlens_padded, ElementsAre(0, 8, 16));
  EXPECT_EQ(least.layout.partition, Partition::kZigzagPerDocument);
}

TEST(Padding, RecordedRowsAreThoseOfTheFramework) {
  const auto rejected = [](PaddingPolicy policy, int64_t recorded, const char* words) {
    UnpaddedBatch batch = Batch({6}, 1, 1, false);
    batch.sequences[0].recorded_rows = recorded;
    const auto prediction = PredictPadding(batch, policy);
    EXPECT_THAT(prediction, Fails(absl::StatusCode::kInvalidArgument, Reason::kShape)) << words << recorded;
    EXPECT_THAT(std::string(prediction.status().message()), HasSubstr(words));
  };
  for (const int64_t recorded : {4, 6}) {
    rejected(SlimePadding{}, recorded, "slime takes T - 1");
    rejected(MilesPadding{}, recorded, "miles takes T - 1");
  }
  for (const int64_t recorded : {4, 7}) {
    rejected(VerlPadding{}, recorded, "verl takes T or T - 1");
    rejected(MsSwiftPadding{}, recorded, "ms-swift takes T or T - 1");
  }
  rejected(NemoRlPadding{}, 7, "NeMo-RL takes at most T");
  rejected(SkyRlPadding{}, 7, "SkyRL takes at most T");
}

TEST(Padding, WhatIsOfNoSampleIsPaddedAsAnyOther) {
  const UnpaddedBatch samples = Batch({6, 3}, 2, 1, false);
  UnpaddedBatch batch = samples;
  batch.sequences[1] = {.tokens = 3, .live = true};
  for (const PaddingPolicy& policy :
       {PaddingPolicy(VerlPadding{}), PaddingPolicy(SlimePadding{}), PaddingPolicy(MilesPadding{}),
        PaddingPolicy(MsSwiftPadding{}), PaddingPolicy(SkyRlPadding{})}) {
    ASSERT_OK_AND_ASSIGN(const auto expected, PredictPadding(samples, policy));
    ASSERT_OK_AND_ASSIGN(const auto prediction, PredictPadding(batch, policy));
    EXPECT_EQ(prediction.layout.cu_seqlens_padded, expected.layout.cu_seqlens_padded) << prediction.policy;
    EXPECT_TRUE(prediction.layout.sequences[1].live) << prediction.policy;
  }
}

TEST(Padding, HugeSizesAreRejectedNotWrapped) {
  UnpaddedBatch batch = Batch({1 << 20, 1 << 20}, 1 << 20, 1 << 20, true);
  const PaddingPolicy policies[] = {
      MegatronPadding{},        VerlPadding{.fp8 = true, .length_bucket = 67108863},
      MilesPadding{},           SlimePadding{.pad_size_multiplier = 1 << 26},
      NemoRlPadding{},          MsSwiftPadding{.fp8_recipe = Fp8Recipe::kBlockwise, .fused_attention = true},
      SkyRlPadding{.fp8 = true}};
  for (const PaddingPolicy& policy : policies) {
    const auto prediction = PredictPadding(batch, policy);
    if (prediction.ok()) {
      EXPECT_THAT(BuildRowMap(prediction->layout, {}).status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
  EXPECT_THAT(PredictPadding(UnpaddedBatch{}, SlimePadding{}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(PredictPadding(Batch({1}, 0, 1, false), SlimePadding{}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(PredictPadding(Batch({1}, 1, 1, false), SlimePadding{.pad_size_multiplier = 0}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(PredictPadding(Batch({int64_t{1} << 62, int64_t{1} << 62}, 1, 1, false), SlimePadding{}),
              Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

class DifferenceTest : public ::testing::Test {
 protected:
  DifferenceTest()
      : predicted_(*PredictPadding(Batch({10, 3}, 2, 2, true), VerlPadding{})), passed_(predicted_.layout) {}
  std::string Words() const { return FirstDifference(predicted_, passed_).value_or(""); }

  PaddingPrediction predicted_;  // Documents of 16 and 8 rows.
  MicroBatchLayout passed_;
};

TEST_F(DifferenceTest, NoneForWhatWasPredicted) { EXPECT_EQ(Words(), ""); }

TEST_F(DifferenceTest, NamesTheBoundary) {
  passed_.cu_seqlens_padded = {0, 16, 20};
  passed_.total_rows = 20;
  EXPECT_EQ(Words(), "cu_seqlens_padded[2] is 20, verl gives 24");
}

TEST_F(DifferenceTest, NamesTheTail) {
  passed_.cu_seqlens_padded = {0, 16, 24, 32};
  passed_.total_rows = 32;
  EXPECT_EQ(Words(), "cu_seqlens_padded[3] is 32, verl gives 24");
  passed_.cu_seqlens_padded = {0, 16, 24};
  EXPECT_EQ(Words(), "total_rows is 32, verl gives 24");
}

TEST_F(DifferenceTest, NamesTheChoice) {
  passed_.partition = Partition::kContiguous;
  EXPECT_EQ(Words(), "partition is contiguous, verl gives zigzag_per_document");
  passed_.sequence_parallel = false;
  EXPECT_EQ(Words(), "sequence_parallel is 0, verl gives 1");
  passed_.cp_size = 4;
  EXPECT_EQ(Words(), "cp_size is 4, verl gives 2");
  passed_.format = TokenFormat::kBshd;
  EXPECT_EQ(Words(), "format is BSHD, verl gives THD");
}

// miles #465: the multiple used dp instead of tp.
TEST(Difference, PadMultiple) {
  ASSERT_OK_AND_ASSIGN(const auto predicted,
                       PredictPadding(Batch({7700}, 1, 1, false), MilesPadding{.pad_size_multiplier = 64}));
  EXPECT_EQ(predicted.layout.total_rows, 7744);
  MicroBatchLayout passed = predicted.layout;
  passed.cu_seqlens_padded.back() = passed.total_rows = 7808;
  EXPECT_THAT(FirstDifference(predicted, passed).value_or(""), HasSubstr("is 7808, miles gives 7744"));
}

TEST(Difference, BatchMajorRectangle) {
  ASSERT_OK_AND_ASSIGN(const auto predicted,
                       PredictPadding(Batch({7, 8}, 1, 1, false), NemoRlPadding{.packed = false}));
  MicroBatchLayout passed = predicted.layout;
  passed.row_order = RowOrder::kBatchMajor;
  EXPECT_THAT(FirstDifference(predicted, passed).value_or(""), HasSubstr("row_order is batch_major"));
  passed.padded_length = 16;
  EXPECT_THAT(FirstDifference(predicted, passed).value_or(""), HasSubstr("padded_length is 16, nemo_rl gives 8"));
}

}  // namespace
}  // namespace routing_replay::trainer
