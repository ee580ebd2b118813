// hybrid: patterns of Mamba, attention and MoE layers, and the layers that each chunk builds from them.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"

namespace routing_replay::golden {
namespace {

absl::StatusOr<trainer::LayerTable> TableOf(const Json& input, const trainer::HybridPattern& pattern) {
  return trainer::LayerTable::Create({.num_layers = pattern.num_layers(),
                                      .pipeline_size = input.at("pp").get<int32_t>(),
                                      // Megatron requires as many segments as there are chunks.
                                      .virtual_stages = IntOr(input.at("vpp"), 1),
                                      .first_stage_layers = OptionalInt(input.at("first")),
                                      .last_stage_layers = OptionalInt(input.at("last")),
                                      .hybrid = pattern});
}

// Facts that depend only on the pattern.
Json FactsOf(const trainer::HybridPattern& pattern) {
  std::string symbols = absl::StrJoin(pattern.stages, "");
  for (int32_t depth = 0; depth < pattern.mtp_depths; ++depth) symbols += pattern.mtp;
  Json counts = Json::object();
  for (const char symbol : std::string("*DGM+-E")) {
    counts[std::string(1, symbol)] = std::count(symbols.begin(), symbols.end(), symbol);
  }
  return {{"total_layers", pattern.num_layers()},
          {"segments", pattern.stages.size()},
          {"mtp_pattern", pattern.mtp_depths == 0 ? Json() : Json(pattern.mtp)},
          {"mtp_depths", pattern.mtp_depths},
          {"symbol_counts", counts}};
}

// The layers that a chunk with this range builds.
Json ChunkOf(const trainer::HybridPattern& pattern, trainer::LayerRange range) {
  Json moe = Json::array();
  const std::string symbols = absl::StrJoin(pattern.stages, "");
  for (int32_t id = range.begin; id < range.end; ++id) {
    if (symbols[id] == 'E') moe.push_back(id);
  }
  return {{"offset", range.begin}, {"types", symbols.substr(range.begin, range.size())}, {"moe_layer_ids", moe}};
}

// Compares each of Megatron's chunks by itself, for splits that leave layers out: our code rejects them and has no
// table for them.
std::string UncoveredDiffer(const trainer::HybridPattern& pattern, const Json& stages) {
  for (const Json& rank : stages) {
    for (const Json& chunk : rank) {
      const int32_t begin = chunk.at("offset").get<int32_t>();
      const int32_t size = static_cast<int32_t>(chunk.at("types").get<std::string>().size());
      const Json ours = ChunkOf(pattern, {begin, begin + size});
      if (ours != chunk) return absl::StrCat("chunk ", ours.dump(), ", expected ", chunk.dump());
    }
  }
  return "";
}

std::string StagesDiffer(const trainer::HybridPattern& pattern, const trainer::LayerTable& table, const Json& stages) {
  Json ours = Json::array();
  for (int32_t p = 0; p < table.pipeline_size(); ++p) {
    Json& rank = ours.emplace_back(Json::array());
    for (int32_t v = 0; v < table.virtual_stages(); ++v) rank.push_back(ChunkOf(pattern, table.range(p, v)));
  }
  return ours == stages ? "" : absl::StrCat("stages ", ours.dump(), ", expected ", stages.dump());
}

Outcome RunHybrid(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const auto pattern = trainer::ParseHybridPattern(input.at("pattern").get<std::string>());
  const auto table = pattern.ok() ? TableOf(input, *pattern) : pattern.status();
  if (!expect.at("raises").is_null()) return table.ok() ? Failed("accepted, expected a rejection") : Passed();
  if (!pattern.ok()) return Failed(absl::StrCat("rejected: ", pattern.status().message()));
  const Json facts = FactsOf(*pattern);
  for (const auto& [key, value] : facts.items()) {
    if (value != expect.at(key)) return Failed(absl::StrCat(key, " ", value.dump(), ", not ", expect.at(key).dump()));
  }
  const Json& stages = expect.at("stages");
  const bool covers = expect.at("covers_all_layers").get<bool>();
  if (covers && !table.ok()) return Failed(absl::StrCat("rejected: ", table.status().message()));
  if (!covers && table.ok()) return Failed("accepted, although the chunks do not hold each layer once");
  const std::string difference = covers ? StagesDiffer(*pattern, *table, stages) : UncoveredDiffer(*pattern, stages);
  return difference.empty() ? Passed() : Failed(difference);
}

}  // namespace

Kind HybridKind() { return {{"hybrid"}, RunHybrid}; }

}  // namespace routing_replay::golden
