#include "tests/golden/kinds/split_of.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace routing_replay::golden {
namespace {

absl::StatusOr<trainer::LayerTable> TableOf(trainer::LayerSplit split, const Json& layout) {
  if (!layout.is_null()) {
    auto parsed = LayoutOf(layout);
    if (!parsed.ok()) return parsed.status();
    split.layout = *std::move(parsed);
  }
  return trainer::LayerTable::Create(split);
}

}  // namespace

absl::StatusOr<trainer::PipelineLayout> LayoutOf(const Json& json) {
  if (json.is_string()) return trainer::ParsePipelineLayout(json.get<std::string>());
  return trainer::PipelineLayoutFromNames(json.get<std::vector<std::vector<std::string>>>());
}

absl::StatusOr<trainer::LayerTable> MegatronTable(const Json& input) {
  return TableOf({.num_layers = input.at("num_layers").get<int32_t>(),
                  .pipeline_size = input.at("pp").get<int32_t>(),
                  .virtual_stages = OptionalInt(input.at("vpp")),
                  .first_stage_layers = OptionalInt(input.at("first")),
                  .last_stage_layers = OptionalInt(input.at("last")),
                  .account_for_embedding = input.at("account_embedding").get<bool>(),
                  .account_for_loss = input.at("account_loss").get<bool>(),
                  .mtp_num_layers = IntOr(input.at("mtp_num_layers"), 0)},
                 input.at("layout"));
}

absl::StatusOr<trainer::LayerTable> FrameworkTable(const Json& input) {
  trainer::LayerSplit split{.num_layers = input.at("num_layers").get<int32_t>(),
                            .pipeline_size = input.at("pipeline_size").get<int32_t>(),
                            .virtual_stages = OptionalInt(input.at("virtual_pipeline_size")),
                            .first_stage_layers = OptionalInt(input.at("first_stage_layers")),
                            .last_stage_layers = OptionalInt(input.at("last_stage_layers")),
                            .account_for_embedding = input.at("embedding_in_split").get<bool>(),
                            .account_for_loss = input.value("loss_in_split", false)};
  if (input.at("layout").is_null()) return trainer::LayerTable::Create(split);
  const auto layout = LayoutOf(input.at("layout"));
  if (!layout.ok()) return layout.status();
  // The cases do not list their MTP layers.
  for (const std::string& stage : layout->stages) {
    split.mtp_num_layers += static_cast<int32_t>(std::count(stage.begin(), stage.end(), trainer::kStageMtp));
  }
  return TableOf(split, input.at("layout"));
}

absl::StatusOr<Geometry> GeometryOf(int32_t layers, const Json& step_or_flags) {
  Geometry::Options options{.num_layers = layers, .moe_layer_ids = {}, .num_experts = {8}, .top_k = {2}};
  for (int32_t i = 0; i < layers; ++i) {
    const bool moe = step_or_flags.is_array() ? step_or_flags.at(i) == 1 : i % step_or_flags.get<int32_t>() == 0;
    if (moe) options.moe_layer_ids.push_back(i);
  }
  return Geometry::Create(options);
}

std::string OffsetsDiffer(const trainer::LayerTable& table, const Json& offset_count) {
  Json chunks = Json::array();
  for (int32_t p = 0; p < table.pipeline_size(); ++p) {
    Json& of_rank = chunks.emplace_back(Json::array());
    for (int32_t v = 0; v < table.virtual_stages(); ++v) {
      of_rank.push_back({table.range(p, v).begin, table.range(p, v).size()});
    }
    const Json& expected = offset_count.at(p);
    if (of_rank != expected) {
      return absl::StrCat("rank ", p, " has [offset, count] ", of_rank.dump(), ", expected ", expected.dump());
    }
  }
  return chunks == offset_count ? "" : "the case has more ranks";
}

std::string MtpDiffers(const trainer::LayerTable& table, const Json& mtp_count) {
  Json counts = Json::array();
  for (int32_t p = 0; p < table.pipeline_size(); ++p) {
    Json& of_rank = counts.emplace_back(Json::array());
    for (int32_t v = 0; v < table.virtual_stages(); ++v) of_rank.push_back(table.mtp_layers(p, v));
  }
  return counts == mtp_count ? "" : absl::StrCat("MTP layers ", counts.dump(), ", expected ", mtp_count.dump());
}

}  // namespace routing_replay::golden
