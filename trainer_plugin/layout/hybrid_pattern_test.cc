#include "routing_replay/trainer/layers.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseHybridPattern, EverySymbolIsALayer) {
  ASSERT_OK_AND_ASSIGN(const HybridPattern pattern, ParseHybridPattern("M*ME|MEM-/ME/ME"));
  EXPECT_THAT(pattern.stages, ElementsAre("M*ME", "MEM-"));
  EXPECT_EQ(pattern.num_layers(), 8);
  EXPECT_EQ(pattern.mtp, "ME");
  EXPECT_EQ(pattern.mtp_depths, 2);
}

TEST(ParseHybridPattern, EmptyDepthsAreNone) {
  ASSERT_OK_AND_ASSIGN(const HybridPattern pattern, ParseHybridPattern("GDE//"));
  EXPECT_EQ(pattern.mtp_depths, 0);
  EXPECT_EQ(pattern.mtp, "");
}

TEST(ParseHybridPattern, Rejections) {
  for (const char* text : {"MEX", "M E", "M*|D", "*+", "ME/*D", "ME/M|E", "ME/ME/MM", "ME/X", "ME//ME"}) {
    EXPECT_THAT(ParseHybridPattern(text), Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << text;
  }
}

TEST(HybridPattern, NemotronNanoCountsMambaAndAttention) {
  ASSERT_OK_AND_ASSIGN(const HybridPattern pattern,
                       ParseHybridPattern("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"));
  EXPECT_EQ(pattern.num_layers(), 52);
  ASSERT_OK_AND_ASSIGN(const LayerTable table,
                       LayerTable::Create({.num_layers = 52, .pipeline_size = 4, .hybrid = pattern}));
  EXPECT_EQ(table.range(3, 0), (LayerRange{39, 52}));
}

TEST(HybridPattern, GivenStages) {
  const auto create = [](int32_t pipeline_size, std::optional<int32_t> first, std::optional<int32_t> last) {
    return LayerTable::Create({.num_layers = 6,
                               .pipeline_size = pipeline_size,
                               .first_stage_layers = first,
                               .last_stage_layers = last,
                               .hybrid = *ParseHybridPattern("MEMEME")});
  };
  ASSERT_OK_AND_ASSIGN(const LayerTable table, create(3, 1, 3));
  EXPECT_EQ(table.range(1, 0), (LayerRange{1, 3}));
  ASSERT_OK_AND_ASSIGN(const LayerTable no_middle, create(3, 2, 4));
  EXPECT_TRUE(no_middle.range(1, 0).empty());
  EXPECT_OK(create(2, 1, 5));
  EXPECT_OK(create(1, 6, std::nullopt));
  const auto hole = create(2, 1, 2);
  EXPECT_THAT(hole, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  EXPECT_THAT(std::string(hole.status().message()), HasSubstr("the given stages have 3 layers"));
  for (const auto& table :
       {create(2, 4, 4), create(3, 4, 4), create(3, -1, 1), create(1, 2, std::nullopt), create(1, 3, 3)}) {
    EXPECT_THAT(table, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
  EXPECT_THAT(std::string(create(3, -1, 1).status().message()), HasSubstr("negative"));
  EXPECT_THAT(std::string(create(1, 3, 3).status().message()), HasSubstr("give one size"));
}

TEST(HybridPattern, RejectionsStateTheRule) {
  const auto rejected = [](const std::string& text, LayerSplit split, const std::string& words) {
    split.hybrid = *ParseHybridPattern(text);
    if (split.num_layers == 0) split.num_layers = split.hybrid->num_layers();
    const auto table = LayerTable::Create(split);
    EXPECT_THAT(table, Fails(absl::StatusCode::kInvalidArgument, Reason::kField)) << text;
    EXPECT_THAT(std::string(table.status().message()), HasSubstr(words)) << text;
  };
  rejected("MEMEMEM", {.pipeline_size = 2}, "do not split evenly over 2 pipeline ranks");
  rejected("MEME", {.pipeline_size = 2, .virtual_stages = 2}, "cannot have virtual stages");
  rejected("ME|ME|ME", {.pipeline_size = 2}, "not a multiple of 2 pipeline ranks");
  rejected("ME|ME|ME|ME", {.pipeline_size = 2, .virtual_stages = 1}, "make 2");
  rejected("ME|ME", {.pipeline_size = 1}, "at least two pipeline ranks");
  rejected("MEME", {.num_layers = 5}, "4 symbols");
  rejected("MEME/ME", {.mtp_num_layers = 2}, "1 MTP depths");
}

TEST(HybridPattern, OneRankHoldsSeveralChunksIfToldSo) {
  ASSERT_OK_AND_ASSIGN(
      const LayerTable table,
      LayerTable::Create({.num_layers = 4, .virtual_stages = 2, .hybrid = *ParseHybridPattern("MEM|E")}));
  EXPECT_EQ(table.range(0, 1), (LayerRange{3, 4}));
}

TEST(HybridPattern, MtpOfAnOlderConfigurationHasNoPattern) {
  ASSERT_OK_AND_ASSIGN(
      const LayerTable table,
      LayerTable::Create(
          {.num_layers = 4, .pipeline_size = 2, .hybrid = *ParseHybridPattern("MEME"), .mtp_num_layers = 1}));
  EXPECT_EQ(table.mtp_layers(1, 0), 1);
}

}  // namespace
}  // namespace routing_replay::trainer
