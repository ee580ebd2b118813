// moe_pattern: the MoE layers that each chunk builds. The conversion of Megatron's moe_layer_freq is tested in Python
// (python_kinds.h).
#include "absl/strings/str_cat.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"

namespace routing_replay::golden {
namespace {

// Returns the ids of the MoE layers of chunk (p, v). Without a geometry, the model has no MoE layers.
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
  if (!table.ok()) return Failed(absl::StrCat("rejected: ", table.status().message()));
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

Outcome RunMoePattern(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  if (!expect.at("raises").is_null()) return Passed();
  const Json& pattern = expect.at("pattern");
  if (pattern == Json(std::vector<int>(input.at("num_layers"), 0)))
    return CompareStages(nullptr, input, expect.at("stages"));
  const auto geometry = GeometryOf(pattern.size(), pattern);
  if (!geometry.ok()) return Failed(absl::StrCat("rejected: ", geometry.status().message()));
  return CompareStages(&*geometry, input, expect.at("stages"));
}

}  // namespace

Kind MoePatternKind() { return {{"moe_pattern"}, RunMoePattern}; }

}  // namespace routing_replay::golden
