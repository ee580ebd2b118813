// moe_pattern: which layers Megatron's moe_layer_freq makes MoE layers, and which of them each chunk builds.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/model_config.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"

namespace routing_replay::golden {
namespace {

Outcome ComparePattern(const Geometry& geometry, const Json& expected) {
  Json pattern = Json::array();
  for (int32_t i = 0; i < geometry.num_layers(); ++i) pattern.push_back(geometry.FindOrdinal(i).has_value() ? 1 : 0);
  if (pattern == expected) return Passed();
  return Failed(absl::StrCat("the pattern is ", pattern.dump(), ", expected ", expected.dump()));
}

// Without a geometry the model has no MoE layers.
Json MoeIdsOf(const Geometry* geometry, const trainer::LayerTable& table, int32_t p, int32_t v) {
  Json ids = Json::array();
  if (geometry == nullptr) return ids;
  const auto owned = trainer::OwnedMoeLayers(*geometry, table, p, v);
  if (!owned.ok()) return std::string(owned.status().message());
  for (const trainer::OwnedLayer& layer : *owned) ids.push_back(layer.layer_id);
  return ids;
}

Outcome CompareStages(const Geometry* geometry, const Json& input, const Json& expected) {
  const auto table = MegatronTable(input);
  if (!table.ok()) return Failed(absl::StrCat("refused: ", table.status().message()));
  Json stages = Json::array();
  for (int32_t p = 0; p < table->pipeline_size(); ++p) {
    Json& rank = stages.emplace_back(Json::array());
    for (int32_t v = 0; v < table->virtual_stages(); ++v) {
      const trainer::LayerRange range = table->range(p, v);
      rank.push_back(
          {{"offset", range.begin}, {"count", range.size()}, {"moe_layer_ids", MoeIdsOf(geometry, *table, p, v)}});
    }
  }
  if (stages == expected) return Passed();
  return Failed(absl::StrCat("stages ", stages.dump(), ", expected ", expected.dump()));
}

Outcome Run(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const Json& frequency = input.at("moe_layer_freq");
  const auto model = ModelOf(input.at("num_layers"), frequency);
  if (!expect.at("raises").is_null()) return model.ok() ? Failed("accepted, expected a refusal") : Passed();
  if (expect.at("pattern") == Json(std::vector<int>(input.at("num_layers"), 0))) {
    const bool said = !model.ok() && absl::StrContains(model.status().message(), "no routed experts");
    return said ? CompareStages(nullptr, input, expect.at("stages")) : Failed("no MoE layers, and that is not said");
  }
  if (!model.ok()) return Failed(absl::StrCat("refused: ", model.status().message()));
  if (Outcome outcome = ComparePattern(model->geometry, expect.at("pattern"));
      outcome.verdict != Outcome::Verdict::kPassed) {
    return outcome;
  }
  // The command line's text says the same.
  const auto from_text = ModelOf(input.at("num_layers"), frequency.dump());
  if (!from_text.ok() || !(from_text->geometry == model->geometry)) return Failed("as text it is read otherwise");
  return CompareStages(&model->geometry, input, expect.at("stages"));
}

}  // namespace

Kind MoePatternKind() { return {{"moe_pattern"}, Run}; }

}  // namespace routing_replay::golden
