#include "routing_replay/trainer/diagnose.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

constexpr int32_t kLayers = 8;

// E and K of a model. Its layer 0 is dense. Rollout makes some of the experts popular.
struct Experts {
  int32_t num_experts;
  int32_t top_k;
};

Geometry Model(const Experts& experts) {
  Geometry::Options options{.num_layers = kLayers, .num_experts = {experts.num_experts}, .top_k = {experts.top_k}};
  for (int32_t i = 1; i < kLayers; ++i) options.moe_layer_ids.push_back(i);
  return *Geometry::Create(options);
}

MicroBatchLayout Packed() {
  return {.sequences = {{.tokens = 200, .recorded_rows = 199},
                        {.tokens = 90, .recorded_rows = 89},
                        {.tokens = 310, .recorded_rows = 309}},
          .cu_seqlens_padded = {0, 200, 296, 608},
          .total_rows = 608,
          .cp_size = 2,
          .tp_size = 2,
          .sequence_parallel = true};
}

constexpr LayerSplit kSplit{.num_layers = kLayers, .pipeline_size = 2};
const PlanRank kRank{.pp_rank = 1, .rows = {.cp_rank = 1, .tp_rank = 0}};
const std::vector<OwnedLayer> kOwned{{4, 3, 0}, {5, 4, 0}, {6, 5, 0}, {7, 6, 0}};

// The scores of all tokens in all MoE layers. The scores of a token are similar to those of the token before it.
class Rollout {
 public:
  Rollout(const Experts& experts, const MicroBatchLayout& layout, unsigned seed)
      : experts_(experts), layout_(layout), random_(seed) {
    for (const SequenceShape& sequence : layout.sequences) {
      std::vector<float>& scores = scores_.emplace_back();
      std::vector<float> token(Stride());
      std::vector<float> popular(Stride());
      for (float& value : popular) value = Normal();
      for (int64_t row = 0; row < sequence.tokens; ++row) {
        for (size_t i = 0; i < token.size(); ++i) {
          token[i] = 0.4F * token[i] + 0.917F * Normal();
          scores.push_back(token[i] + popular[i]);
        }
      }
    }
  }

  // The ids that the engine would record, per sequence.
  std::vector<RouteIds> Recorded() {
    std::vector<RouteIds> recorded;
    for (size_t s = 0; s < scores_.size(); ++s) {
      RouteIds ids{layout_.sequences[s].recorded_rows, kLayers - 1, experts_.top_k, {}};
      for (int64_t row = 0; row < ids.rows; ++row) {
        for (int32_t layer = 0; layer < ids.layers; ++layer) Choose(s, row, layer, 0, ids.ids);
      }
      recorded.push_back(std::move(ids));
    }
    return recorded;
  }

  // The ids that the rank's routers choose: from the same scores as the engine's, plus noise with the standard
  // deviation `noise`. The standard deviation of the scores is 1.4.
  RouteIds Live(const MicroBatchLayout& layout, const PlanRank& rank, float noise) {
    const std::vector<LocalRow> rows = ExpandRowMap(*BuildRowMap(layout, rank.rows));
    RouteIds ids{static_cast<int64_t>(rows.size()), static_cast<int32_t>(kOwned.size()), experts_.top_k, {}};
    for (const LocalRow& row : rows) {
      for (const OwnedLayer& layer : kOwned) {
        if (row.state == RowState::kPad) {
          ids.ids.resize(ids.ids.size() + ids.top_k, 0);
        } else {
          Choose(row.sequence, row.row, layer.ordinal, noise, ids.ids);
        }
      }
    }
    return ids;
  }

 private:
  size_t Stride() const { return static_cast<size_t>(kLayers - 1) * experts_.num_experts; }
  float Normal() { return std::normal_distribution<float>()(random_); }

  void Choose(size_t sequence, int64_t row, int32_t ordinal, float noise, std::vector<int32_t>& out) {
    const auto begin = scores_[sequence].begin() + row * Stride() + ordinal * experts_.num_experts;
    std::vector<float> scores(begin, begin + experts_.num_experts);
    if (noise > 0) {
      for (float& score : scores) score += noise * Normal();
    }
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + experts_.top_k, order.end(),
                      [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    out.insert(out.end(), order.begin(), order.begin() + experts_.top_k);
  }

  const Experts experts_;
  const MicroBatchLayout layout_;
  std::mt19937 random_;
  std::vector<std::vector<float>> scores_;
};

Alignment Judge(const Experts& experts, const MicroBatchLayout& layout, const std::vector<RouteIds>& recorded,
                const RouteIds& live) {
  const Geometry geometry = Model(experts);
  const auto alignment = JudgeAlignment(
      {.geometry = geometry, .split = kSplit, .layout = layout, .rank = kRank, .recorded = recorded, .live = live});
  EXPECT_OK(alignment);
  return *alignment;
}

// The record with every row moved by `by` rows.
std::vector<RouteIds> Shifted(std::vector<RouteIds> recorded, int64_t by) {
  for (RouteIds& ids : recorded) {
    const int64_t row = ids.layers * ids.top_k;
    std::rotate(ids.ids.begin(), by > 0 ? ids.ids.end() - by * row : ids.ids.begin() - by * row, ids.ids.end());
  }
  return recorded;
}

std::vector<RouteIds> LayersShifted(std::vector<RouteIds> recorded, int32_t by) {
  for (RouteIds& ids : recorded) {
    for (int64_t row = 0; row < ids.rows; ++row) {
      const auto begin = ids.ids.begin() + row * ids.layers * ids.top_k, end = begin + ids.layers * ids.top_k;
      std::rotate(begin, by > 0 ? end - by * ids.top_k : begin - by * ids.top_k, end);
    }
  }
  return recorded;
}

class AlignmentTest : public ::testing::TestWithParam<Experts> {};

INSTANTIATE_TEST_SUITE_P(Models, AlignmentTest,
                         ::testing::Values(Experts{8, 2}, Experts{16, 1}, Experts{60, 4}, Experts{64, 6},
                                           Experts{128, 8}, Experts{256, 8}));

// When weights have drifted, the record and the live choice of many more than 1 % of the tokens have no expert in
// common. That alone is no misalignment.
TEST_P(AlignmentTest, DriftIsNoMisalignment) {
  for (unsigned seed = 0; seed < 3; ++seed) {
    Rollout rollout(GetParam(), Packed(), seed);
    const std::vector<RouteIds> recorded = rollout.Recorded();
    double before = 1.01;
    for (const float noise : {0.0F, 0.1F, 0.3F, 0.6F, 1.0F}) {
      const Alignment alignment = Judge(GetParam(), Packed(), recorded, rollout.Live(Packed(), kRank, noise));
      EXPECT_FALSE(alignment.misaligned) << "noise " << noise << ": " << alignment.kept;
      EXPECT_EQ(alignment.rows.mistakes.front(), "none");
      EXPECT_EQ(alignment.layers.mistakes.front(), "none");
      EXPECT_LT(alignment.kept, before);
      before = alignment.kept;
    }
    EXPECT_GT(before, kLeastKept);
  }
}

TEST_P(AlignmentTest, ShiftsAreNamedUnderDrift) {
  for (const float noise : {0.0F, 0.3F}) {
    Rollout rollout(GetParam(), Packed(), 7);
    const std::vector<RouteIds> recorded = rollout.Recorded();
    const RouteIds live = rollout.Live(Packed(), kRank, noise);
    const auto judge = [&](const std::vector<RouteIds>& given) {
      const Alignment alignment = Judge(GetParam(), Packed(), given, live);
      EXPECT_TRUE(alignment.misaligned);
      EXPECT_GT(alignment.explained_kept, alignment.kept + kLeastKept);
      return alignment.rows.mistakes.front() + " " + alignment.layers.mistakes.front();
    };
    // Each row holds the route of the token before it, or after it.
    EXPECT_EQ(judge(Shifted(recorded, 1)), "one_row_late none");
    EXPECT_EQ(judge(Shifted(recorded, -1)), "one_row_early none");
    EXPECT_EQ(judge(LayersShifted(recorded, 1)), "none one_layer_before");
    EXPECT_EQ(judge(LayersShifted(recorded, -1)), "none layer_as_moe_ordinal");
    EXPECT_EQ(judge(LayersShifted(Shifted(recorded, 1), 1)), "one_row_late one_layer_before");
  }
}

// The plan was made for another layout than the model's.
TEST_P(AlignmentTest, AWrongLayoutIsNamed) {
  Rollout rollout(GetParam(), Packed(), 8);
  const std::vector<RouteIds> recorded = rollout.Recorded();
  MicroBatchLayout model = Packed();
  model.partition = Partition::kContiguous;
  Alignment alignment = Judge(GetParam(), Packed(), recorded, rollout.Live(model, kRank, 0.3F));
  EXPECT_TRUE(alignment.misaligned);
  EXPECT_EQ(alignment.rows.mistakes.front(), "partition_zigzag_per_document");
  EXPECT_EQ(alignment.rows.what, "rows were cut as zigzag_per_document, but the model's tokens as contiguous");
  PlanRank other = kRank;
  other.rows.tp_rank = 1;
  alignment = Judge(GetParam(), Packed(), recorded, rollout.Live(Packed(), other, 0.3F));
  EXPECT_TRUE(alignment.misaligned);
  EXPECT_EQ(alignment.rows.mistakes.front(), "rows_of_tp_rank_0");
}

// First one of three samples is wrong, then one of four layers.
TEST_P(AlignmentTest, APartThatIsLostIsFound) {
  Rollout rollout(GetParam(), Packed(), 9);
  const std::vector<RouteIds> recorded = rollout.Recorded();
  const RouteIds live = rollout.Live(Packed(), kRank, 0.1F);
  std::vector<RouteIds> other = recorded;
  other[1] = Rollout(GetParam(), Packed(), 10).Recorded()[1];
  Alignment alignment = Judge(GetParam(), Packed(), other, live);
  EXPECT_TRUE(alignment.misaligned);
  EXPECT_EQ(alignment.sequence, 1);
  EXPECT_EQ(alignment.rows.mistakes.front(), "none");
  other = recorded;
  const std::vector<RouteIds> strange = Rollout(GetParam(), Packed(), 11).Recorded();
  for (size_t s = 0; s < other.size(); ++s) {
    for (int64_t row = 0; row < other[s].rows; ++row) {
      const int64_t at = (row * other[s].layers + 4) * other[s].top_k;
      std::copy_n(strange[s].ids.begin() + at, other[s].top_k, other[s].ids.begin() + at);
    }
  }
  alignment = Judge(GetParam(), Packed(), other, live);
  EXPECT_TRUE(alignment.misaligned);
  EXPECT_EQ(alignment.layer_id, 5);
}

// If all known mistakes fit equally badly, the best one is best by chance, and must not be named.
TEST_P(AlignmentTest, ARecordOfOtherRowsHasNoName) {
  for (unsigned seed = 20; seed < 24; ++seed) {
    const RouteIds live = Rollout(GetParam(), Packed(), seed).Live(Packed(), kRank, 0.1F);
    const std::vector<RouteIds> strange = Rollout(GetParam(), Packed(), seed + 100).Recorded();
    const Alignment alignment = Judge(GetParam(), Packed(), strange, live);
    EXPECT_TRUE(alignment.misaligned);
    EXPECT_EQ(alignment.rows.mistakes.front(), "none");
    EXPECT_EQ(alignment.layers.mistakes.front(), "none");
    EXPECT_EQ(alignment.explained_kept, alignment.kept);
  }
}

// A rank that has only its own rows of the record names only mistakes that it can see in them.
TEST_P(AlignmentTest, TheRanksOwnRowsAreEnoughForAShift) {
  Rollout rollout(GetParam(), Packed(), 12);
  std::vector<RouteIds> recorded = Shifted(rollout.Recorded(), 1);
  std::vector<RouteIds> own = recorded;
  for (RouteIds& ids : own) std::fill(ids.ids.begin(), ids.ids.end(), -1);
  for (const LocalRow& row : ExpandRowMap(*BuildRowMap(Packed(), kRank.rows))) {
    if (row.state != RowState::kReplayed) continue;
    const int64_t stride = int64_t{kLayers - 1} * GetParam().top_k;
    const int64_t at = row.row * stride + int64_t{3} * GetParam().top_k;
    std::copy_n(recorded[row.sequence].ids.begin() + at, 4 * GetParam().top_k, own[row.sequence].ids.begin() + at);
  }
  const Alignment alignment = Judge(GetParam(), Packed(), own, rollout.Live(Packed(), kRank, 0.3F));
  EXPECT_TRUE(alignment.misaligned);
  EXPECT_EQ(alignment.rows.mistakes.front(), "one_row_late");
}

TEST(AlignmentTest, AFewRowsSayNothing) {
  const Experts experts{64, 6};
  MicroBatchLayout layout{.sequences = {{.tokens = 11, .recorded_rows = 10}},
                          .cu_seqlens_padded = {0, 11},
                          .total_rows = 11,
                          .partition = Partition::kContiguous};
  const PlanRank rank{.pp_rank = 1};
  Rollout rollout(experts, layout, 1);
  const RouteIds live = rollout.Live(layout, rank, 0);
  const std::vector<RouteIds> shifted = Shifted(rollout.Recorded(), 1);
  const Geometry geometry = Model(experts);
  AlignmentInput input{
      .geometry = geometry, .split = kSplit, .layout = layout, .rank = rank, .recorded = shifted, .live = live};
  ASSERT_OK_AND_ASSIGN(Alignment alignment, JudgeAlignment(input));
  EXPECT_FALSE(alignment.misaligned);
  EXPECT_EQ(alignment.rows.mistakes.front(), "one_row_late");
  const std::vector<RouteIds> nothing(1, {0, kLayers - 1, experts.top_k, {}});
  input.recorded = nothing;
  ASSERT_OK_AND_ASSIGN(alignment, JudgeAlignment(input));
  EXPECT_FALSE(alignment.misaligned);
  EXPECT_EQ(alignment.rows.compared, 0);
  input.recorded = {};
  EXPECT_THAT(JudgeAlignment(input), testing::Fails(absl::StatusCode::kInvalidArgument, Reason::kShape));
}

}  // namespace
}  // namespace routing_replay::trainer
