// layers_*: the decoder layers of one pipeline rank, and the columns of the payload that it takes. Our layers must be
// those of Megatron. Our columns must be those of the framework, or, if the case says that the framework takes wrong
// ones ("known_wrong"), its "correct" columns.
#include "absl/strings/str_cat.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"

namespace routing_replay::golden {
namespace {

Json ColumnsOf(const std::vector<trainer::OwnedLayer>& layers, bool all_layers) {
  Json columns = Json::array();
  for (const trainer::OwnedLayer& layer : layers) columns.push_back(all_layers ? layer.layer_id : layer.ordinal);
  return columns;
}

Outcome RunFrameworkLayers(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const auto table = FrameworkTable(input);
  if (!table.ok()) return Failed(absl::StrCat("rejected: ", table.status().message()));
  const auto geometry = GeometryOf(input.at("num_layers").get<int32_t>(), input.at("moe_layer_freq"));
  if (!geometry.ok()) return Failed(absl::StrCat("rejected: ", geometry.status().message()));
  const Json& megatron = expect.at("megatron");
  const Json& columns = expect.value("known_wrong", false) ? expect.at("correct") : expect.at("columns");
  const size_t chunks = table->virtual_stages();
  if (megatron.size() != chunks || columns.size() != chunks) return Failed("the case has another number of chunks");
  const int32_t rank = input.at("pipeline_rank").get<int32_t>();
  for (int32_t v = 0; v < table->virtual_stages(); ++v) {
    const auto owned = trainer::OwnedMoeLayers(*geometry, *table, rank, v);
    if (!owned.ok()) return Failed(absl::StrCat("rejected: ", owned.status().message()));
    const trainer::LayerRange range = table->range(rank, v);
    const Json chunk = {{"offset", range.begin}, {"count", range.size()}};
    if (chunk != megatron[v])
      return Failed(absl::StrCat("chunk ", v, " is ", chunk.dump(), ", expected ", megatron[v].dump()));
    const Json ours = ColumnsOf(*owned, input.at("payload_basis") == "all_layers");
    if (ours != columns[v]) {
      return Failed(absl::StrCat("columns of chunk ", v, " are ", ours.dump(), ", expected ", columns[v].dump()));
    }
  }
  return Passed();
}

}  // namespace

Kind FrameworkLayersKind() { return {{"layers_"}, RunFrameworkLayers}; }

}  // namespace routing_replay::golden
