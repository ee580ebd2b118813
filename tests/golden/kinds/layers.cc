// layers: offset and count of every chunk, as Megatron gives them. layers_invalid: what must be refused.
#include "absl/strings/str_cat.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"

namespace routing_replay::golden {
namespace {

Outcome RunLayers(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  if (!input.at("layout").is_null()) return NotYetAnswered("layouts");
  const auto table = trainer::LayerTable::Create(MegatronSplit(input));
  if (!table.ok()) return Failed(absl::StrCat("refused: ", table.status().message()));
  if (table->virtual_stages() != expect.at("virtual_stages").get<int32_t>()) {
    return Failed(absl::StrCat(table->virtual_stages(), " virtual stages, expected ", expect["virtual_stages"].dump()));
  }
  Json chunks = Json::array();
  for (int32_t p = 0; p < table->pipeline_size(); ++p) {
    Json& of_rank = chunks.emplace_back(Json::array());
    for (int32_t v = 0; v < table->virtual_stages(); ++v) {
      of_rank.push_back({table->range(p, v).begin, table->range(p, v).size()});
    }
    const Json& expected = expect.at("offset_count").at(p);
    if (of_rank != expected) {
      return Failed(absl::StrCat("rank ", p, " has [offset, count] ", of_rank.dump(), ", expected ", expected.dump()));
    }
  }
  if (chunks != expect.at("offset_count")) return Failed("the case has more ranks");
  return Passed();
}

Outcome RunInvalidLayers(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  if (!input.at("layout").is_null()) return NotYetAnswered("layouts");
  const auto table = trainer::LayerTable::Create(MegatronSplit(input));
  if (table.ok()) return Failed("accepted, expected a refusal");
  return Passed();
}

}  // namespace

Kind LayersKind() { return {{"layers"}, RunLayers}; }
Kind InvalidLayersKind() { return {{"layers_invalid"}, RunInvalidLayers}; }

}  // namespace routing_replay::golden
