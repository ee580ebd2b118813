#include "routing_replay/trainer/layers.h"

#include <random>
#include <set>

#include "tests/reference/layer_layout_reference.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;
using Chunks = std::vector<std::vector<int32_t>>;  // Per v: first layer, count.

Chunks ChunksOf(const LayerTable& table, int32_t p) {
  Chunks chunks;
  for (int32_t v = 0; v < table.virtual_stages(); ++v) {
    chunks.push_back({table.range(p, v).begin, table.range(p, v).size()});
  }
  return chunks;
}

Chunks ChunksOf(const LayerSplit& split, int32_t p) {
  const auto table = LayerTable::Create(split);
  if (!table.ok()) {
    ADD_FAILURE() << table.status();
    return {};
  }
  return ChunksOf(*table, p);
}

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

TEST(LayerTable, EvenSplits) {
  const LayerSplit qwen{.num_layers = 48, .pipeline_size = 4};
  const LayerSplit interleaved{.num_layers = 48, .pipeline_size = 4, .virtual_stages = 2};
  for (int32_t p = 0; p < 4; ++p) {
    EXPECT_EQ(ChunksOf(qwen, p), (Chunks{{12 * p, 12}}));
    EXPECT_EQ(ChunksOf(interleaved, p), (Chunks{{6 * p, 6}, {24 + 6 * p, 6}}));
  }
}

TEST(LayerTable, GivenFirstAndLastStages) {
  const LayerSplit moonlight{.num_layers = 27, .pipeline_size = 2, .first_stage_layers = 13};
  EXPECT_EQ(ChunksOf(moonlight, 0), (Chunks{{0, 13}}));
  EXPECT_EQ(ChunksOf(moonlight, 1), (Chunks{{13, 14}}));
  for (std::optional<int32_t> last : {std::optional<int32_t>(), std::optional<int32_t>(7)}) {
    const LayerSplit split{.num_layers = 27, .pipeline_size = 4, .first_stage_layers = 6, .last_stage_layers = last};
    const int32_t begins[] = {0, 6, 13, 20};
    for (int32_t p = 0; p < 4; ++p) EXPECT_EQ(ChunksOf(split, p), (Chunks{{begins[p], p == 0 ? 6 : 7}}));
  }
  const LayerSplit one_last{.num_layers = 61, .pipeline_size = 16, .last_stage_layers = 1};
  for (int32_t p = 0; p < 15; ++p) EXPECT_EQ(ChunksOf(one_last, p), (Chunks{{4 * p, 4}}));
  EXPECT_EQ(ChunksOf(one_last, 15), (Chunks{{60, 1}}));
  const LayerSplit three_two{.num_layers = 61, .pipeline_size = 16, .first_stage_layers = 3, .last_stage_layers = 2};
  EXPECT_EQ(ChunksOf(three_two, 0), (Chunks{{0, 3}}));
  for (int32_t p = 1; p < 15; ++p) EXPECT_EQ(ChunksOf(three_two, p), (Chunks{{4 * p - 1, 4}}));
  EXPECT_EQ(ChunksOf(three_two, 15), (Chunks{{59, 2}}));
  const LayerSplit eight{.num_layers = 61, .pipeline_size = 8, .first_stage_layers = 7, .last_stage_layers = 6};
  EXPECT_EQ(ChunksOf(eight, 0), (Chunks{{0, 7}}));
  for (int32_t p = 1; p < 7; ++p) EXPECT_EQ(ChunksOf(eight, p), (Chunks{{8 * p - 1, 8}}));
  EXPECT_EQ(ChunksOf(eight, 7), (Chunks{{55, 6}}));
  const LayerSplit four{.num_layers = 61, .pipeline_size = 4, .last_stage_layers = 13};
  EXPECT_EQ(ChunksOf(four, 3), (Chunks{{48, 13}}));
  const LayerSplit large{.num_layers = 94, .pipeline_size = 8, .first_stage_layers = 11, .last_stage_layers = 11};
  EXPECT_EQ(ChunksOf(large, 0), (Chunks{{0, 11}}));
  for (int32_t p = 1; p < 7; ++p) EXPECT_EQ(ChunksOf(large, p), (Chunks{{12 * p - 1, 12}}));
  EXPECT_EQ(ChunksOf(large, 7), (Chunks{{83, 11}}));
  const LayerSplit lopsided{.num_layers = 48, .pipeline_size = 2, .first_stage_layers = 46};
  EXPECT_EQ(ChunksOf(lopsided, 0), (Chunks{{0, 46}}));
  EXPECT_EQ(ChunksOf(lopsided, 1), (Chunks{{46, 2}}));
}

TEST(LayerTable, GivenStagesWithVirtualStages) {
  const LayerSplit both{
      .num_layers = 16, .pipeline_size = 4, .virtual_stages = 2, .first_stage_layers = 2, .last_stage_layers = 2};
  EXPECT_EQ(ChunksOf(both, 0), (Chunks{{0, 1}, {8, 1}}));
  EXPECT_EQ(ChunksOf(both, 1), (Chunks{{1, 3}, {9, 3}}));
  EXPECT_EQ(ChunksOf(both, 2), (Chunks{{4, 3}, {12, 3}}));
  EXPECT_EQ(ChunksOf(both, 3), (Chunks{{7, 1}, {15, 1}}));
  const LayerSplit first{.num_layers = 30, .pipeline_size = 4, .virtual_stages = 2, .first_stage_layers = 6};
  EXPECT_EQ(ChunksOf(first, 0), (Chunks{{0, 3}, {15, 3}}));
  EXPECT_EQ(ChunksOf(first, 1), (Chunks{{3, 4}, {18, 4}}));
  EXPECT_EQ(ChunksOf(first, 2), (Chunks{{7, 4}, {22, 4}}));
  EXPECT_EQ(ChunksOf(first, 3), (Chunks{{11, 4}, {26, 4}}));
}

TEST(LayerTable, EmbeddingAndLossCountAsLayers) {
  const LayerSplit plain{.num_layers = 94, .pipeline_size = 4, .account_for_embedding = true, .account_for_loss = true};
  EXPECT_EQ(ChunksOf(plain, 0), (Chunks{{0, 23}}));
  EXPECT_EQ(ChunksOf(plain, 1), (Chunks{{23, 24}}));
  EXPECT_EQ(ChunksOf(plain, 2), (Chunks{{47, 24}}));
  EXPECT_EQ(ChunksOf(plain, 3), (Chunks{{71, 23}}));
  const LayerSplit interleaved{.num_layers = 94,
                               .pipeline_size = 8,
                               .virtual_stages = 2,
                               .account_for_embedding = true,
                               .account_for_loss = true};
  EXPECT_EQ(ChunksOf(interleaved, 0), (Chunks{{0, 5}, {47, 6}}));
  for (int32_t p = 1; p < 7; ++p) {
    EXPECT_EQ(ChunksOf(interleaved, p), (Chunks{{6 * p - 1, 6}, {6 * p + 47, 6}}));
  }
  EXPECT_EQ(ChunksOf(interleaved, 7), (Chunks{{41, 6}, {89, 5}}));
  const LayerSplit embedding{.num_layers = 31, .pipeline_size = 4, .virtual_stages = 4, .account_for_embedding = true};
  EXPECT_EQ(ChunksOf(embedding, 0), (Chunks{{0, 1}, {7, 2}, {15, 2}, {23, 2}}));
  for (int32_t p = 1; p < 4; ++p) {
    EXPECT_EQ(ChunksOf(embedding, p), (Chunks{{2 * p - 1, 2}, {2 * p + 7, 2}, {2 * p + 15, 2}, {2 * p + 23, 2}}));
  }
}

// Every split that is accepted covers each layer once, in v-major order, and agrees with the closed forms.
TEST(LayerTable, CoversEachLayerOnce) {
  std::mt19937 random(20);
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  int accepted = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    LayerSplit split{.num_layers = pick(1, 96), .pipeline_size = pick(1, 8), .virtual_stages = pick(1, 3)};
    switch (pick(0, 2)) {
      case 0:
        split.account_for_embedding = pick(0, 1);
        split.account_for_loss = pick(0, 1);
        break;
      case 1:
        if (pick(0, 1)) split.first_stage_layers = pick(0, 12);
        if (pick(0, 1)) split.last_stage_layers = pick(0, 12);
        break;
      default:
        break;
    }
    const auto table = LayerTable::Create(split);
    if (!table.ok()) continue;
    ++accepted;
    std::multiset<int32_t> seen;
    for (int32_t p = 0; p < split.pipeline_size; ++p) {
      for (int32_t v = 0; v < table->virtual_stages(); ++v) {
        const LayerRange range = table->range(p, v);
        if (table->virtual_stages() == 1 || !(split.account_for_embedding || split.account_for_loss)) {
          EXPECT_EQ(range.begin, reference::FirstLayer(split, p, v));
        }
        for (int32_t g = range.begin; g < range.end; ++g) seen.insert(g);
      }
    }
    ASSERT_EQ(seen.size(), static_cast<size_t>(split.num_layers));
    for (int32_t g = 0; g < split.num_layers; ++g) ASSERT_EQ(seen.count(g), 1u);
  }
  EXPECT_GT(accepted, 1000);
}

TEST(LayerTable, RefusalsStateTheRule) {
  const auto refused = [](const LayerSplit& split, const std::string& words) {
    const auto table = LayerTable::Create(split);
    EXPECT_THAT(table, Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
    EXPECT_THAT(std::string(table.status().message()), ::testing::HasSubstr(words));
  };
  refused({.num_layers = 0}, "split.num_layers");
  refused({.num_layers = 8, .pipeline_size = 0}, "split.pipeline_size");
  refused({.num_layers = 8, .pipeline_size = 2, .virtual_stages = 0}, "split.virtual_stages");
  refused({.num_layers = 10, .pipeline_size = 4}, "not a multiple of 4 pipeline ranks");
  refused({.num_layers = 12, .pipeline_size = 4, .virtual_stages = 2}, "not a multiple of 2 virtual stages");
  refused({.num_layers = 12, .virtual_stages = 3}, "at least two pipeline ranks");
  refused({.num_layers = 32, .pipeline_size = 2, .account_for_embedding = true}, "32 layers + 1");
  refused({.num_layers = 12, .pipeline_size = 4, .first_stage_layers = 3, .account_for_loss = true}, "excludes");
  refused({.num_layers = 12, .pipeline_size = 4, .first_stage_layers = 0}, "at least one layer");
  refused({.num_layers = 12, .pipeline_size = 4, .last_stage_layers = 0}, "at least one layer");
  refused({.num_layers = 36, .first_stage_layers = 5, .last_stage_layers = 31}, "one rank");
  refused({.num_layers = 12, .first_stage_layers = 6}, "do not split evenly");
  refused({.num_layers = 8, .pipeline_size = 2, .first_stage_layers = 8}, "do not split evenly");
  refused({.num_layers = 12, .pipeline_size = 4, .first_stage_layers = 2, .last_stage_layers = 3}, "less 5");
  refused({.num_layers = 16, .pipeline_size = 2, .virtual_stages = 2, .first_stage_layers = 8, .last_stage_layers = 8},
          "no middle stage");
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

TEST(OwnedMoeLayers, CountsBehindDensePrefixes) {
  const auto counts = [](const Geometry& geometry, const LayerSplit& split) {
    std::vector<size_t> result;
    for (int32_t p = 0; p < split.pipeline_size; ++p) result.push_back(Owned(geometry, split, p).size());
    return result;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(counts(WithDensePrefix(27, 1), {.num_layers = 27, .pipeline_size = 4, .first_stage_layers = 6}),
              ElementsAre(5, 7, 7, 7));
  const Geometry deepseek = WithDensePrefix(61, 3);
  EXPECT_THAT(counts(deepseek, {.num_layers = 61, .pipeline_size = 4, .last_stage_layers = 13}),
              ElementsAre(13, 16, 16, 13));
  EXPECT_THAT(counts(deepseek, {.num_layers = 61, .pipeline_size = 8, .first_stage_layers = 7, .last_stage_layers = 6}),
              ElementsAre(4, 8, 8, 8, 8, 8, 8, 6));
  const LayerSplit sixteen{.num_layers = 61, .pipeline_size = 16, .last_stage_layers = 1};
  EXPECT_THAT(Owned(deepseek, sixteen, 0), ElementsAre(OwnedLayer{.layer_id = 3, .ordinal = 0}));
  for (int32_t p = 1; p < 15; ++p) EXPECT_EQ(Owned(deepseek, sixteen, p).front().ordinal, 4 * p - 3);
  EXPECT_THAT(Owned(deepseek, sixteen, 15), ElementsAre(OwnedLayer{.layer_id = 60, .ordinal = 57}));
  const Geometry kimi = WithDensePrefix(61, 1);
  const LayerSplit eight{.num_layers = 61, .pipeline_size = 8, .first_stage_layers = 8, .last_stage_layers = 5};
  EXPECT_THAT(counts(kimi, eight), ElementsAre(7, 8, 8, 8, 8, 8, 8, 5));
}

TEST(OwnedMoeLayers, AStageMayHoldNoMoeLayer) {
  const LayerSplit split{.num_layers = 61, .pipeline_size = 16, .first_stage_layers = 3, .last_stage_layers = 2};
  EXPECT_TRUE(Owned(WithDensePrefix(61, 3), split, 0).empty());
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

TEST(OwnedMoeLayers, Refusals) {
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
