// Random batches under every policy: padded samples are as short as the rule allows, and all ranks together have each
// row of the padded batch.
#include <map>
#include <random>

#include "routing_replay/trainer/padding.h"
#include "tests/support/layout_trials.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::LayoutTrials;

class RandomPolicies {
 public:
  explicit RandomPolicies(uint32_t seed) : random_(seed) {}

  int64_t Pick(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  bool Coin() { return Pick(0, 1) == 1; }

  UnpaddedBatch Batch() {
    UnpaddedBatch batch{.sequences = {},
                        .cp_size = 1 << Pick(0, 2),
                        .tp_size = static_cast<int32_t>(Pick(1, 4)),
                        .sequence_parallel = Coin()};
    for (int64_t i = Pick(1, 5); i > 0; --i) {
      const int64_t tokens = Pick(1, 40);
      batch.sequences.push_back({.tokens = tokens, .recorded_rows = tokens - 1});
    }
    return batch;
  }

  PaddingPolicy Policy() {
    const int64_t multiplier = Pick(1, 9);
    switch (Pick(0, 8)) {
      case 0:
        return MegatronPadding{};
      case 1:
        return VerlPadding{.packed = Coin(), .fp8 = Coin()};
      case 2:
        return VerlPadding{.contiguous = true, .min_local_rows = Pick(1, 30), .length_bucket = Pick(1, 64)};
      case 3:
        return SlimePadding{.pad_size_multiplier = multiplier, .allgather_cp = Coin()};
      case 4:
        return MilesPadding{.packed = Coin(), .pad_size_multiplier = multiplier, .allgather_cp = Coin()};
      case 5:
        return SkyRlPadding{.packed = Coin(), .fp8 = Coin()};
      case 6:
        return NemoRlPadding{
            .packed = Coin(), .make_sequence_length_divisible_by = 24, .pipeline_size = 1 + int32_t{Coin()}};
      case 7:
        return MsSwiftPadding{.padding_free = Coin(), .fp8_format = Coin() ? "e4m3" : "", .fused_attention = Coin()};
      default:
        return PrimeRlPadding{multiplier};
    }
  }

 private:
  std::mt19937 random_;
};

void ExpectEachRowOnce(const MicroBatchLayout& layout) {
  std::map<std::pair<int32_t, int32_t>, int> seen;
  for (int32_t c = 0; c < layout.cp_size; ++c) {
    for (int32_t t = 0; t < layout.tp_size; ++t) {
      ASSERT_OK_AND_ASSIGN(const RowMap map, BuildRowMap(layout, {.cp_rank = c, .tp_rank = t}));
      for (const LocalRow& row : ExpandRowMap(map)) {
        if (row.state != RowState::kPad) ++seen[{row.sequence, row.row}];
      }
    }
  }
  size_t tokens = 0;
  for (const SequenceShape& shape : layout.sequences) tokens += shape.tokens;
  ASSERT_EQ(seen.size(), tokens);
  for (const auto& [row, times] : seen) ASSERT_EQ(times, layout.sequence_parallel ? 1 : layout.tp_size);
}

TEST(PaddingProperty, RowsOfEveryPolicyAreCovered) {
  RandomPolicies random(41);
  int cut = 0;
  for (int trial = 0; trial < LayoutTrials(); ++trial) {
    const auto prediction = PredictPadding(random.Batch(), random.Policy());
    if (!prediction.ok()) continue;  // This policy cannot pad the batch.
    const MicroBatchLayout& layout = prediction->layout;
    ASSERT_EQ(FirstDifference(*prediction, layout), std::nullopt);
    if (!BuildRowMap(layout, {}).ok()) continue;  // CP or SP cannot divide the layout.
    ++cut;
    ASSERT_NO_FATAL_FAILURE(ExpectEachRowOnce(layout)) << prediction->policy << " trial " << trial;
  }
  EXPECT_GT(cut, LayoutTrials() / 2);
}

// If any boundary is one row off, FirstDifference names it.
TEST(PaddingProperty, AChangedBoundaryIsNamed) {
  RandomPolicies random(42);
  for (int trial = 0; trial < LayoutTrials(); ++trial) {
    const auto prediction = PredictPadding(random.Batch(), random.Policy());
    if (!prediction.ok() || prediction->layout.format != TokenFormat::kThd) continue;
    MicroBatchLayout passed = prediction->layout;
    const int64_t bound = random.Pick(1, static_cast<int64_t>(passed.cu_seqlens_padded.size()) - 1);
    ++passed.cu_seqlens_padded[bound];
    const auto words = FirstDifference(*prediction, passed);
    ASSERT_TRUE(words.has_value());
    EXPECT_THAT(*words, ::testing::StartsWith(absl::StrCat("cu_seqlens_padded[", bound, "]")));
  }
}

}  // namespace
}  // namespace routing_replay::trainer
