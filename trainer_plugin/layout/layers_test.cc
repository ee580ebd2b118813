#include "routing_replay/trainer/layers.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
// A model whose first `dense` layers have no router.
Geometry WithDensePrefix(int32_t layers, int32_t dense) {
  Geometry::Options options{.num_layers = layers, .num_experts = {64}, .top_k = {6}};
  for (int32_t i = dense; i < layers; ++i) options.moe_layer_ids.push_back(i);
  return *Geometry::Create(options);
}

std::vector<OwnedLayer> Owned(const Geometry& geometry, const LayerSplit& split, int32_t p) {
  const auto owned = OwnedMoeLayers(geometry, *LayerTable::Create(split), p);
  EXPECT_OK(owned);
  return owned.value_or(std::vector<OwnedLayer>{});
}

TEST(LayerTable, RejectionsStateTheRule) {
  const auto rejected = [](const LayerSplit& split, const std::string& words) {
    const auto table = LayerTable::Create(split);
    EXPECT_THAT(table, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_THAT(std::string(table.status().message()), ::testing::HasSubstr(words));
  };
  rejected({.num_layers = 0}, "split.num_layers");
  rejected({.num_layers = 8, .pipeline_size = 0}, "split.pipeline_size");
  rejected({.num_layers = 8, .pipeline_size = 2, .virtual_stages = 0}, "split.virtual_stages");
  rejected({.num_layers = 10, .pipeline_size = 4}, ": 10 layers do not split evenly over 4 pipeline ranks");
  rejected({.num_layers = 12, .pipeline_size = 4, .virtual_stages = 2}, "not a multiple of 2 virtual stages");
  rejected({.num_layers = 12, .virtual_stages = 3}, "at least two pipeline ranks");
  rejected({.num_layers = 32, .pipeline_size = 2, .account_for_embedding = true}, "32 layers + 1");
  rejected({.num_layers = 12, .pipeline_size = 4, .first_stage_layers = 3, .account_for_loss = true},
           "first_stage_layers and last_stage_layers exclude");
  rejected({.num_layers = 12, .pipeline_size = 4, .first_stage_layers = 0}, "at least one layer");
  rejected({.num_layers = 12, .pipeline_size = 4, .last_stage_layers = 0}, "at least one layer");
  rejected({.num_layers = 36, .first_stage_layers = 5, .last_stage_layers = 31}, "the only rank is the first stage");
  rejected({.num_layers = 12, .first_stage_layers = 6}, "stages have 6 layers, but there are 12");
  rejected({.num_layers = 8, .pipeline_size = 2, .first_stage_layers = 8}, "at least one layer");
  rejected({.num_layers = 12, .pipeline_size = 4, .first_stage_layers = 2, .last_stage_layers = 3}, "minus 5");
  rejected({.num_layers = 16, .pipeline_size = 2, .virtual_stages = 2, .first_stage_layers = 8, .last_stage_layers = 8},
           "no middle stage");
  rejected({.num_layers = 8, .pipeline_size = 4, .mtp_num_layers = -1}, "split.mtp_num_layers");
}

TEST(LayerTable, WhatWritesStagesOutExcludesSizes) {
  const PipelineLayout layout = *ParsePipelineLayout("Ett|ttL");
  const HybridPattern hybrid = *ParseHybridPattern("ME|ME");
  const auto rejected = [](const LayerSplit& split) {
    EXPECT_THAT(LayerTable::Create(split), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  };
  for (LayerSplit split : {LayerSplit{.num_layers = 4, .pipeline_size = 2, .layout = layout},
                           LayerSplit{.num_layers = 4, .pipeline_size = 2, .hybrid = hybrid}}) {
    EXPECT_OK(LayerTable::Create(split));
    LayerSplit other = split;
    other.first_stage_layers = 2;
    rejected(other);
    other = split;
    other.last_stage_layers = 2;
    rejected(other);
    other = split;
    other.account_for_embedding = true;
    rejected(other);
    other = split;
    other.account_for_loss = true;
    rejected(other);
    other = split;
    other.virtual_stages = 2;
    rejected(other);
    other = split;
    other.layout = layout;
    other.hybrid = hybrid;
    rejected(other);
  }
}

TEST(LayerTable, MtpIsBehindTheLastLayerOrWhereTheLayoutSays) {
  const LayerTable plain =
      *LayerTable::Create({.num_layers = 8, .pipeline_size = 2, .virtual_stages = 2, .mtp_num_layers = 2});
  EXPECT_EQ(plain.mtp(), (MtpPlacement{.layers = 2, .pp_rank = 1, .chunk = 1}));
  EXPECT_EQ(plain.mtp_layers(1, 1), 2);
  EXPECT_EQ(plain.mtp_layers(1, 0), 0);
  const LayerTable alone = *LayerTable::Create(
      {.num_layers = 4, .pipeline_size = 2, .layout = *ParsePipelineLayout("Ett|tt|m|L"), .mtp_num_layers = 1});
  EXPECT_EQ(alone.mtp(), (MtpPlacement{.layers = 1, .pp_rank = 0, .chunk = 1}));
  EXPECT_TRUE(alone.range(0, 1).empty());
  const LayerTable hybrid =
      *LayerTable::Create({.num_layers = 2, .pipeline_size = 2, .hybrid = *ParseHybridPattern("M|E/*E/*E")});
  EXPECT_EQ(hybrid.mtp(), (MtpPlacement{.layers = 2, .pp_rank = 1, .chunk = 0}));
}

TEST(WithoutNativeLayers, OrdinalsStay) {
  const Geometry geometry = WithDensePrefix(6, 1);
  const LayerSplit split{.num_layers = 6};
  ASSERT_OK_AND_ASSIGN(const auto layers, WithoutNativeLayers(geometry, Owned(geometry, split, 0), {1, 3}));
  EXPECT_THAT(layers, ::testing::ElementsAre(OwnedLayer{2, 1, 0}, OwnedLayer{4, 3, 0}, OwnedLayer{5, 4, 0}));
  EXPECT_THAT(WithoutNativeLayers(geometry, layers, {0}), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
}

TEST(OwnedMoeLayers, KeepsBothNumbers) {
  const Geometry moonlight = WithDensePrefix(27, 1);
  const LayerSplit split{.num_layers = 27, .pipeline_size = 2, .first_stage_layers = 13};
  const auto first = Owned(moonlight, split, 0);
  ASSERT_EQ(first.size(), 12u);
  EXPECT_EQ(first.front(), (OwnedLayer{.layer_id = 1, .ordinal = 0}));
  EXPECT_EQ(first.back(), (OwnedLayer{.layer_id = 12, .ordinal = 11}));
  const auto second = Owned(moonlight, split, 1);
  ASSERT_EQ(second.size(), 14u);
  EXPECT_EQ(second.front(), (OwnedLayer{.layer_id = 13, .ordinal = 12}));
  EXPECT_EQ(second.back(), (OwnedLayer{.layer_id = 26, .ordinal = 25}));
}

TEST(OwnedMoeLayers, ChunksOneByOneOrTogether) {
  const Geometry geometry =
      *Geometry::Create({.num_layers = 8, .moe_layer_ids = {0, 2, 4, 6}, .num_experts = {8}, .top_k = {2}});
  const LayerTable table = *LayerTable::Create({.num_layers = 8, .pipeline_size = 2, .virtual_stages = 2});
  ASSERT_OK_AND_ASSIGN(auto all, OwnedMoeLayers(geometry, table, 0));
  EXPECT_THAT(all, ::testing::ElementsAre(OwnedLayer{0, 0, 0}, OwnedLayer{4, 2, 1}));
  ASSERT_OK_AND_ASSIGN(auto one, OwnedMoeLayers(geometry, table, 1, 1));
  EXPECT_THAT(one, ::testing::ElementsAre(OwnedLayer{6, 3, 1}));
}

TEST(OwnedMoeLayers, Rejections) {
  const Geometry geometry = Geometry::Uniform(8, 8, 2);
  const LayerTable table = *LayerTable::Create({.num_layers = 8, .pipeline_size = 2, .virtual_stages = 2});
  const auto fails = Fails(absl::StatusCode::kInvalidArgument, Reason::kField);
  EXPECT_THAT(OwnedMoeLayers(Geometry::Uniform(7, 8, 2), table, 0), fails);
  EXPECT_THAT(OwnedMoeLayers(geometry, table, 2), fails);
  EXPECT_THAT(OwnedMoeLayers(geometry, table, -1), fails);
  EXPECT_THAT(OwnedMoeLayers(geometry, table, 0, 2), fails);
  EXPECT_THAT(OwnedMoeLayers(geometry, table, 0, -1), fails);
}

}  // namespace
}  // namespace routing_replay::trainer
