// Compares random splits, layouts and patterns with closed forms and slow references.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/reference/layer_layout_reference.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

// Number of trials: RR_LAYOUT_TRIALS, or 5,000 if it is not set.
int Trials() {
  const char* const said = std::getenv("RR_LAYOUT_TRIALS");
  return said == nullptr ? 5000 : std::atoi(said);
}

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}

  int32_t Pick(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(random_); }

  // Sizes that usually give a valid split.
  LayerSplit Sizes() {
    LayerSplit split{.pipeline_size = Pick(1, 8)};
    if (Pick(0, 1)) split.virtual_stages = Pick(1, 3);
    split.account_for_embedding = Pick(0, 3) == 0;
    split.account_for_loss = Pick(0, 3) == 0;
    if (Pick(0, 2) == 0) split.first_stage_layers = Pick(0, 4) * split.virtual_stages.value_or(1);
    if (Pick(0, 2) == 0) split.last_stage_layers = Pick(0, 4) * split.virtual_stages.value_or(1);
    const int32_t middle =
        split.pipeline_size - split.first_stage_layers.has_value() - split.last_stage_layers.has_value();
    split.num_layers = middle * Pick(1, 4) * split.virtual_stages.value_or(1) + split.first_stage_layers.value_or(0) +
                       split.last_stage_layers.value_or(0) - split.account_for_embedding - split.account_for_loss;
    if (Pick(0, 7) == 0) split.num_layers = Pick(1, 96);
    split.mtp_num_layers = Pick(0, 2);
    return split;
  }

  // The entries of a model in order, cut into stages at random places.
  std::vector<std::string> Stages(const std::string& entries, int32_t count) {
    std::vector<std::string> stages(count);
    std::multiset<size_t> cuts;
    for (int32_t i = 1; i < count; ++i) cuts.insert(Pick(0, static_cast<int32_t>(entries.size())));
    cuts.insert(entries.size());
    size_t begin = 0;
    auto stage = stages.begin();
    for (const size_t end : cuts) {
      *stage++ = entries.substr(begin, end - begin);
      begin = end;
    }
    return stages;
  }

  std::string Text(const std::string& alphabet, int32_t length) {
    std::string text;
    for (int32_t i = Pick(0, length); i > 0; --i) {
      text.push_back(alphabet[Pick(0, static_cast<int32_t>(alphabet.size()) - 1)]);
    }
    return text;
  }

 private:
  std::mt19937 random_;
};

// Checks that each layer is in exactly one chunk: the chunks, by virtual stage v and then by pipeline rank p, follow
// each other without a gap.
void ExpectCovers(const LayerTable& table) {
  int32_t next = 0;
  for (int32_t v = 0; v < table.virtual_stages(); ++v) {
    for (int32_t p = 0; p < table.pipeline_size(); ++p) {
      const LayerRange range = table.range(p, v);
      ASSERT_EQ(range.begin, next);
      ASSERT_GE(range.size(), 0);
      next = range.end;
    }
  }
  ASSERT_EQ(next, table.num_layers());
}

TEST(LayersProperty, SizesFollowTheClosedForms) {
  Random random(20);
  int accepted = 0;
  for (int trial = 0; trial < Trials(); ++trial) {
    const LayerSplit split = random.Sizes();
    const auto table = LayerTable::Create(split);
    if (!table.ok()) continue;
    ++accepted;
    ASSERT_NO_FATAL_FAILURE(ExpectCovers(*table)) << "trial " << trial;
    for (int32_t p = 0; p < split.pipeline_size; ++p) {
      for (int32_t v = 0; v < table->virtual_stages(); ++v) {
        ASSERT_EQ(table->range(p, v).begin, reference::FirstLayer(split, p, v)) << "trial " << trial;
      }
    }
    ASSERT_EQ(table->mtp_layers(split.pipeline_size - 1, table->virtual_stages() - 1), split.mtp_num_layers);
  }
  EXPECT_GT(accepted, Trials() / 4);
}

TEST(LayersProperty, LayoutsAreTakenIfTheyAreAModel) {
  Random random(21);
  int accepted = 0;
  for (int trial = 0; trial < Trials(); ++trial) {
    LayerSplit split{.num_layers = random.Pick(1, 24), .pipeline_size = random.Pick(1, 4)};
    split.mtp_num_layers = random.Pick(0, 2);
    std::string entries =
        absl::StrCat("E", std::string(split.num_layers, 't'), std::string(split.mtp_num_layers, 'm'), "L");
    if (random.Pick(0, 3) == 0)
      entries[random.Pick(0, static_cast<int32_t>(entries.size()) - 1)] = "EtmL"[random.Pick(0, 3)];
    const int32_t count = split.pipeline_size * random.Pick(1, 3) + (random.Pick(0, 9) == 0 ? 1 : 0);
    split.layout = PipelineLayout{random.Stages(entries, count)};
    const bool is_model =
        reference::IsModelLayout(split.layout->stages, split.pipeline_size, split.num_layers, split.mtp_num_layers);
    const auto table = LayerTable::Create(split);
    ASSERT_EQ(table.ok(), is_model) << absl::StrJoin(split.layout->stages, "|") << " " << table.status();
    if (!is_model) continue;
    ++accepted;
    ASSERT_NO_FATAL_FAILURE(ExpectCovers(*table)) << "trial " << trial;
    for (int32_t s = 0; s < count; ++s) {
      const std::string& stage = split.layout->stages[s];
      const int32_t p = s % split.pipeline_size;
      const int32_t v = s / split.pipeline_size;
      ASSERT_EQ(table->range(p, v).size(), std::count(stage.begin(), stage.end(), 't'));
      ASSERT_EQ(table->mtp_layers(p, v), std::count(stage.begin(), stage.end(), 'm'));
    }
  }
  EXPECT_GT(accepted, Trials() / 8);
}

TEST(LayersProperty, LayoutTextsAreReadAsMegatronReadsThem) {
  Random random(22);
  int accepted = 0;
  for (int trial = 0; trial < Trials(); ++trial) {
    const std::string text = random.Text(random.Pick(0, 1) ? "Etm|L(,)*0123x " : "tt|(t)*2", 12);
    const auto expected = reference::LayoutStages(text);
    const auto layout = ParsePipelineLayout(text);
    ASSERT_EQ(layout.ok(), expected.has_value()) << "\"" << text << "\" " << layout.status();
    if (!expected) continue;
    ++accepted;
    ASSERT_EQ(layout->stages, *expected) << "\"" << text << "\"";
  }
  EXPECT_GT(accepted, Trials() / 20);
}

TEST(LayersProperty, PatternsCoverEachLayerOnce) {
  Random random(23);
  int accepted = 0;
  for (int trial = 0; trial < Trials(); ++trial) {
    LayerSplit split{.pipeline_size = random.Pick(1, 4)};
    const std::string symbols = random.Text(random.Pick(0, 1) ? "MG*-E" : "MGD+-E", 24);
    const int32_t stages = random.Pick(0, 1) ? 1 : split.pipeline_size * random.Pick(1, 3);
    ASSERT_OK_AND_ASSIGN(
        split.hybrid, ParseHybridPattern(absl::StrCat(absl::StrJoin(random.Stages(symbols, stages), "|"), "/ME/ME")));
    split.num_layers = split.hybrid->num_layers();
    if (stages == 1 && random.Pick(0, 1)) split.first_stage_layers = random.Pick(0, 6);
    if (stages == 1 && random.Pick(0, 1)) split.last_stage_layers = random.Pick(0, 6);
    const auto table = LayerTable::Create(split);
    if (!table.ok()) continue;
    ++accepted;
    ASSERT_NO_FATAL_FAILURE(ExpectCovers(*table)) << "trial " << trial;
    ASSERT_EQ(table->mtp_layers(split.pipeline_size - 1, table->virtual_stages() - 1), 2);
    for (int32_t s = 0; stages > 1 && s < stages; ++s) {
      ASSERT_EQ(static_cast<size_t>(table->range(s % split.pipeline_size, s / split.pipeline_size).size()),
                split.hybrid->stages[s].size());
    }
    ASSERT_EQ(absl::StrJoin(split.hybrid->stages, ""), symbols);
  }
  EXPECT_GT(accepted, Trials() / 8);
}

// The model of a rank as Megatron would build it.
std::vector<LiveChunk> ModelOf(const Geometry& geometry, const LayerTable& table, int32_t p, Random& random) {
  std::vector<LiveChunk> chunks(table.virtual_stages());
  for (int32_t v = 0; v < table.virtual_stages(); ++v) {
    for (int32_t id = table.range(p, v).begin; id < table.range(p, v).end; ++id) {
      if (!geometry.FindOrdinal(id)) continue;
      auto& numbers = chunks[v].layer_numbers;
      numbers.insert(numbers.begin() + random.Pick(0, static_cast<int32_t>(numbers.size())), id + 1);
    }
  }
  return chunks;
}

TEST(LayersProperty, LiveModelsAgreeWithTheirSplitAlone) {
  Random random(24);
  int compared = 0;
  for (int trial = 0; trial < Trials(); ++trial) {
    const LayerSplit split = random.Sizes();
    const auto table = LayerTable::Create(split);
    if (!table.ok()) continue;
    Geometry::Options options{.num_layers = split.num_layers, .num_experts = {8}, .top_k = {2}};
    for (int32_t i = 0; i < split.num_layers; ++i) {
      if (i == 0 || random.Pick(0, 3) > 0) options.moe_layer_ids.push_back(i);
    }
    const Geometry geometry = *Geometry::Create(options);
    const int32_t p = random.Pick(0, split.pipeline_size - 1);
    std::vector<LiveChunk> model = ModelOf(geometry, *table, p, random);
    ASSERT_OK_AND_ASSIGN(const auto none, LiveDifference(geometry, *table, p, model));
    ASSERT_EQ(none, std::nullopt) << *none;
    auto& numbers = model[random.Pick(0, table->virtual_stages() - 1)].layer_numbers;
    if (numbers.empty()) continue;
    numbers.pop_back();
    ASSERT_OK_AND_ASSIGN(const auto difference, LiveDifference(geometry, *table, p, model));
    ASSERT_NE(difference, std::nullopt);
    ++compared;
  }
  EXPECT_GT(compared, Trials() / 8);
}

}  // namespace
}  // namespace routing_replay::trainer
