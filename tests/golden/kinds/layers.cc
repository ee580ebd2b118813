// layers, layers_layout, mtp: Megatron's offset and count of every chunk, and its MTP layers. layers_invalid: splits
// that must be rejected.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/golden/kind.h"
#include "tests/golden/kinds/split_of.h"

namespace routing_replay::golden {
namespace {

Outcome OutcomeOf(const std::string& difference) { return difference.empty() ? Passed() : Failed(difference); }

// The stages of a layout in the symbols E, t, m and L, as [p][v].
Json StageTypes(const Json& layout, int32_t pipeline_size) {
  Json stages = Json::array();
  for (int32_t p = 0; p < pipeline_size; ++p) stages.push_back(Json::array());
  const auto parsed = LayoutOf(layout);
  for (size_t s = 0; parsed.ok() && s < parsed->stages.size(); ++s) {
    stages[s % pipeline_size].push_back(parsed->stages[s]);
  }
  return stages;
}

// Checks a layout for one rank whose chunks all start at layer 0. Megatron accepts it, our code must reject it. So our
// code has no table for it, and only the number of layers in each stage is compared.
Outcome RunUncovered(const Json& input, const Json& expect, const absl::Status& status) {
  if (status.ok()) return Failed("accepted, although the chunks do not hold each layer once");
  const Json stages = StageTypes(input.at("layout"), input.at("pp").get<int32_t>());
  if (stages != expect.at("stage_types")) return Failed(absl::StrCat("stages ", stages.dump()));
  Json offsets = Json::array();
  Json mtp = Json::array();
  for (const Json& stage : stages.at(0)) {
    const std::string types = stage.get<std::string>();
    offsets.push_back({0, std::count(types.begin(), types.end(), 't')});
    mtp.push_back(std::count(types.begin(), types.end(), 'm'));
  }
  if (Json::array({offsets}) != expect.at("offset_count")) return Failed(absl::StrCat("counts ", offsets.dump()));
  if (Json::array({mtp}) != expect.at("mtp_count")) return Failed(absl::StrCat("MTP layers ", mtp.dump()));
  if (expect.at("virtual_stages").get<size_t>() != stages.at(0).size())
    return Failed(absl::StrCat(stages.at(0).size(), " stages"));
  return OutcomeOf(expect.at("asked_on_rank0_for_last_rank_v0") == offsets.at(0) ? "" : "rank 0 answers otherwise");
}

Outcome RunLayers(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const auto table = MegatronTable(input);
  if (!expect.value("covers_all_layers", true)) return RunUncovered(input, expect, table.status());
  if (!table.ok()) return Failed(absl::StrCat("rejected: ", table.status().message()));
  if (table->virtual_stages() != expect.at("virtual_stages").get<int32_t>()) {
    return Failed(absl::StrCat(table->virtual_stages(), " virtual stages, expected ", expect["virtual_stages"].dump()));
  }
  std::string difference = OffsetsDiffer(*table, expect.at("offset_count"));
  if (difference.empty() && expect.contains("mtp_count")) difference = MtpDiffers(*table, expect.at("mtp_count"));
  return OutcomeOf(difference);
}

Outcome RunLayout(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  if (Outcome outcome = RunLayers(golden_case); outcome.verdict != Outcome::Verdict::kPassed) return outcome;
  const Json stages = StageTypes(input.at("layout"), input.at("pp").get<int32_t>());
  if (stages != expect.at("stage_types")) {
    return Failed(absl::StrCat("stages ", stages.dump(), ", expected ", expect.at("stage_types").dump()));
  }
  // Megatron's functions ignore their rank argument: asked on rank 0 for the last rank, they return rank 0's first
  // chunk.
  const Json& asked = expect.at("asked_on_rank0_for_last_rank_v0");
  return OutcomeOf(asked == expect.at("offset_count").at(0).at(0) ? "" : "rank 0 answers otherwise");
}

// Whether the chunks, [offset, count], contain each layer exactly once.
bool HoldsEachOnce(const Json& offset_count, int32_t num_layers) {
  std::vector<int64_t> held(num_layers);
  for (const Json& rank : offset_count) {
    for (const Json& chunk : rank) {
      const int64_t begin = chunk.at(0).get<int64_t>();
      const int64_t end = begin + chunk.at(1).get<int64_t>();
      if (begin < 0 || end < begin || end > num_layers) return false;
      for (int64_t layer = begin; layer < end; ++layer) ++held[layer];
    }
  }
  return std::all_of(held.begin(), held.end(), [](int64_t times) { return times == 1; });
}

// The [offset, count] that Megatron's functions return for each chunk of a pipeline of one rank, if this rank has
// several chunks, or if both first and last stage have a given size. The functions divide the layers by the number of
// ranks (1) and not by the number of chunks, so every chunk starts at layer 0.
Json OffsetsOfOneRank(const Json& input) {
  const int32_t chunks = IntOr(input.at("vpp"), 1);
  const bool embedding = input.at("account_embedding").get<bool>();
  const bool loss = input.at("account_loss").get<bool>();
  const int32_t all = input.at("num_layers").get<int32_t>() + embedding + loss;
  const int32_t slots = IntOr(input.at("last"), IntOr(input.at("first"), all));
  Json offsets = Json::array();
  for (int32_t v = 0; v < chunks; ++v) {
    offsets.push_back({0, slots - (embedding && v == 0) - (loss && v == chunks - 1)});
  }
  return Json::array({offsets});
}

// Checks a split that Megatron accepts. We must accept it if its chunks contain each layer exactly once, and reject it
// otherwise.
Outcome RunAcceptedLayers(const Json& input, const Json& offsets, const absl::StatusOr<trainer::LayerTable>& table) {
  if (HoldsEachOnce(offsets, input.at("num_layers").get<int32_t>())) {
    return table.ok() ? OutcomeOf(OffsetsDiffer(*table, offsets))
                      : Failed(absl::StrCat("rejected: ", table.status().message()));
  }
  if (table.ok()) return Failed("accepted, although the chunks do not hold each layer once");
  if (input.at("pp") != 1 || !input.at("layout").is_null()) return Passed();
  const Json ours = OffsetsOfOneRank(input);
  return OutcomeOf(ours == offsets ? "" : absl::StrCat("Megatron has [offset, count] ", ours.dump()));
}

Outcome RunInvalidLayers(const Json& golden_case) {
  const Json& input = golden_case.at("input");
  const Json& expect = golden_case.at("expect");
  const auto table = MegatronTable(input);
  if (expect.at("raises").is_null()) return RunAcceptedLayers(input, expect.at("offset_count"), table);
  if (expect.at("where") == "nowhere") return Failed("the case raises nowhere");
  return table.ok() ? Failed("accepted, expected a rejection") : Passed();
}

}  // namespace

Kind LayersKind() { return {{"layers", "mtp"}, RunLayers}; }
Kind LayersLayoutKind() { return {{"layers_layout"}, RunLayout}; }
Kind InvalidLayersKind() { return {{"layers_invalid"}, RunInvalidLayers}; }

}  // namespace routing_replay::golden
