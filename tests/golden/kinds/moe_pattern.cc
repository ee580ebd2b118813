// moe_pattern: which layers Megatron's moe_layer_freq makes MoE layers, and which of them each chunk builds.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/wire/model_config.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"

namespace routing_replay::golden {
namespace {

absl::StatusOr<ModelConfig> Model(const Json& input, const Json& frequency) {
  const Json config = {{"num_layers", input.at("num_layers")},
                       {"moe_layer_freq", frequency},
                       {"num_moe_experts", 8},
                       {"moe_router_topk", 2}};
  return ModelConfigFromMegatron(config.dump());
}

Outcome ComparePattern(const Geometry& geometry, const Json& expected) {
  Json pattern = Json::array();
  for (int32_t i = 0; i < geometry.num_layers(); ++i) pattern.push_back(geometry.FindOrdinal(i).has_value() ? 1 : 0);
  if (pattern == expected) return Passed();
  return Failed(absl::StrCat("the pattern is ", pattern.dump(), ", expected ", expected.dump()));
}

Outcome CompareStages(const Geometry& geometry, const trainer::LayerTable& table, const Json& stages) {
  for (int32_t p = 0; p < table.pipeline_size(); ++p) {
    for (int32_t v = 0; v < table.virtual_stages(); ++v) {
      const auto owned = trainer::OwnedMoeLayers(geometry, table, p, v);
      if (!owned.ok()) return Failed(absl::StrCat("refused: ", owned.status().message()));
      Json ids = Json::array();
      for (const trainer::OwnedLayer& layer : *owned) ids.push_back(layer.layer_id);
      const Json& expected = stages.at(p).at(v).at("moe_layer_ids");
      if (ids != expected) {
        return Failed(absl::StrCat("rank ", p, " chunk ", v, " builds ", ids.dump(), ", expected ", expected.dump()));
      }
    }
  }
  return Passed();
}

Outcome Run(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const Json& frequency = input.at("moe_layer_freq");
  const auto model = Model(input, frequency);
  if (!expect.at("raises").is_null()) return model.ok() ? Failed("accepted, expected a refusal") : Passed();
  if (expect.at("pattern") == Json(std::vector<int>(input.at("num_layers"), 0))) {
    // A model without MoE layers has no geometry.
    const bool said = !model.ok() && absl::StrContains(model.status().message(), "no routed experts");
    return said ? Passed() : Failed("no MoE layers, and that is not said");
  }
  if (!model.ok()) return Failed(absl::StrCat("refused: ", model.status().message()));
  if (Outcome outcome = ComparePattern(model->geometry, expect.at("pattern"));
      outcome.verdict != Outcome::Verdict::kPassed) {
    return outcome;
  }
  // The command line's text says the same.
  const auto from_text = Model(input, frequency.dump());
  if (!from_text.ok() || !(from_text->geometry == model->geometry)) return Failed("as text it is read otherwise");
  if (!input.at("layout").is_null()) return NotYetAnswered("layouts");
  const auto table = trainer::LayerTable::Create(MegatronSplit(input));
  if (!table.ok()) return Failed(absl::StrCat("refused: ", table.status().message()));
  return CompareStages(model->geometry, *table, expect.at("stages"));
}

}  // namespace

Kind MoePatternKind() { return {{"moe_pattern"}, Run}; }

}  // namespace routing_replay::golden
