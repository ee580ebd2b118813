#include "trainer_plugin/layout/layers_json.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "proto/json/wire_json.h"
#include "trainer_plugin/layout/layout_json.h"
#include "trainer_plugin/layout/with_field.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;

struct Source {
  Geometry geometry;
  std::optional<LayerSplit> split;
};

// The units behind name the fields of their own structures; this is where the description has them.
absl::Status InNamesOfDescription(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail && detail->field == "split.num_layers" ? WithField(status, "geometry.num_layers") : status;
}

absl::Status ReadStages(JsonObject& object, LayerSplit& split) {
  if (const Json* written = object.FindValue("layout")) {
    auto layout = PipelineLayoutFromJson(*written);
    if (!layout.ok()) return layout.status();
    split.layout = *std::move(layout);
  }
  std::string pattern;
  if (object.FindValue("hybrid_pattern") == nullptr) return absl::OkStatus();
  object.Read("hybrid_pattern", pattern);
  if (!object.status().ok()) return absl::OkStatus();
  auto hybrid = ParseHybridPattern(pattern);
  if (!hybrid.ok()) return hybrid.status();
  split.hybrid = *std::move(hybrid);
  return absl::OkStatus();
}

absl::StatusOr<LayerSplit> SplitFromJson(const Json& json, int32_t num_layers) {
  LayerSplit split{.num_layers = num_layers};
  JsonObject object(json, "split");
  object.Read("pipeline_size", split.pipeline_size);
  object.Read("virtual_stages", split.virtual_stages);
  object.Read("first_stage_layers", split.first_stage_layers);
  object.Read("last_stage_layers", split.last_stage_layers);
  object.Read("account_for_embedding", split.account_for_embedding);
  object.Read("account_for_loss", split.account_for_loss);
  object.Read("mtp_num_layers", split.mtp_num_layers);
  const absl::Status stages = ReadStages(object, split);
  if (absl::Status status = object.status(); !status.ok()) return status;
  if (!stages.ok()) return stages;
  return split;
}

absl::StatusOr<Geometry> GeometryFromJson(const Json& json, absl::string_view path) {
  const auto options = GeometryOptionsFromJson(json, path);
  if (!options.ok()) return options.status();
  return Geometry::Create(*options);
}

absl::StatusOr<Source> SourceOf(const LayerFields& fields) {
  auto geometry = GeometryFromJson(*fields.geometry, "geometry");
  if (!geometry.ok()) return geometry.status();
  Source source{*std::move(geometry), std::nullopt};
  if (fields.split == nullptr) return source;
  auto split = SplitFromJson(*fields.split, source.geometry.num_layers());
  if (!split.ok()) return split.status();
  source.split = *std::move(split);
  return source;
}

absl::StatusOr<std::vector<LiveChunk>> ChunksFromJson(const Json& json) {
  if (!json.is_array()) return Invalid("rank.model", "is not a list of chunks");
  std::vector<LiveChunk> chunks;
  for (const Json& one : json) {
    LiveChunk& chunk = chunks.emplace_back();
    JsonObject object(one, absl::StrCat("rank.model[", chunks.size() - 1, "]"));
    object.Require("layer_numbers");
    object.Read("layer_numbers", chunk.layer_numbers);
    object.Read("mtp_layer_numbers", chunk.mtp_layer_numbers);
    if (absl::Status status = object.status(); !status.ok()) return status;
  }
  return chunks;
}

// A pattern and a geometry that both say which layers carry routes must say the same.
absl::Status CheckPattern(const Source& source) {
  if (!source.split || !source.split->hybrid) return absl::OkStatus();
  std::vector<int32_t> ids;
  for (const LayerRouting& layer : source.geometry.layers()) ids.push_back(layer.layer_id);
  if (ids == source.split->hybrid->moe_layer_ids) return absl::OkStatus();
  return Invalid("split.hybrid_pattern",
                 absl::StrCat("its ", source.split->hybrid->moe_layer_ids.size(), " layers E are not the ", ids.size(),
                              " MoE layers of the geometry"));
}

absl::Status CheckModel(const Geometry& geometry, const LayerTable& table, const PlanRank& rank,
                        const std::vector<LiveChunk>& chunks) {
  const auto difference = LiveDifference(geometry, table, rank.pp_rank, chunks, rank.native_layers);
  if (!difference.ok()) return difference.status();
  return *difference ? Invalid("rank.model", **difference) : absl::OkStatus();
}

// The layers by the table, which what the model says must bear out.
absl::StatusOr<DescribedLayers> LayersOfSplit(const Source& source, const PlanRank& rank,
                                              const std::vector<LiveChunk>* chunks) {
  const LayerSplit split = source.split.value_or(LayerSplit{.num_layers = source.geometry.num_layers()});
  const auto table = LayerTable::Create(split);
  if (!table.ok()) return table.status();
  if (absl::Status status = CheckPattern(source); !status.ok()) return status;
  auto layers = OwnedMoeLayers(source.geometry, *table, rank.pp_rank, rank.chunk);
  if (!layers.ok()) return layers.status();
  if (chunks != nullptr) {
    if (absl::Status status = CheckModel(source.geometry, *table, rank, *chunks); !status.ok()) return status;
  }
  DescribedLayers described{source.geometry, split, *std::move(layers)};
  for (int32_t v = 0; v < table->virtual_stages(); ++v) {
    if (!rank.chunk || *rank.chunk == v) described.mtp_layers += table->mtp_layers(rank.pp_rank, v);
  }
  return described;
}

// The layers as the model says, without a split.
absl::StatusOr<DescribedLayers> LayersOfModel(const Geometry& geometry, const PlanRank& rank,
                                              const std::vector<LiveChunk>& chunks) {
  const int32_t count = static_cast<int32_t>(chunks.size());
  if (rank.chunk && (*rank.chunk < 0 || *rank.chunk >= count)) {
    return Invalid("rank.chunk", absl::StrCat(*rank.chunk, " is not in [0, ", count, ")"));
  }
  auto layers = OwnedMoeLayers(geometry, chunks);
  if (!layers.ok()) return layers.status();
  DescribedLayers described{geometry};
  std::copy_if(layers->begin(), layers->end(), std::back_inserter(described.layers),
               [&](const OwnedLayer& layer) { return !rank.chunk || layer.chunk == *rank.chunk; });
  for (int32_t v = 0; v < count; ++v) {
    if (!rank.chunk || *rank.chunk == v) {
      described.mtp_layers += static_cast<int32_t>(chunks[v].mtp_layer_numbers.size());
    }
  }
  return described;
}

// Engines that capture no hash layers record runs without them, in which the others have other places.
absl::Status PlaceInRun(Geometry run, const Source& source, std::set<int32_t> may_lack, DescribedLayers& described) {
  const std::vector<LayerRouting> own(run.layers().begin(), run.layers().end());
  std::vector<LayerRouting> both;
  for (const LayerRouting& layer : source.geometry.layers()) {
    if (run.FindOrdinal(layer.layer_id) || may_lack.count(layer.layer_id) == 0) both.push_back(layer);
  }
  if (both != own || run.num_layers() != source.geometry.num_layers()) {
    return Invalid(Reason::kGeometryMismatch, "run_geometry",
                   absl::StrCat(run.DebugString(), " is not that of the model, ", source.geometry.DebugString()));
  }
  for (OwnedLayer& layer : described.layers) {
    const auto ordinal = run.FindOrdinal(layer.layer_id);
    if (!ordinal) {
      return Invalid(Reason::kGeometryMismatch, "run_geometry",
                     absl::StrCat("the model's router of layer ", layer.layer_id,
                                  " chooses by scores, and the run has no routes of that layer"));
    }
    layer.ordinal = *ordinal;
  }
  described.geometry = std::move(run);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DescribedLayers> DescribedLayersFromJson(const LayerFields& fields, const PlanRank& rank) {
  const auto source = SourceOf(fields);
  if (!source.ok()) return InNamesOfDescription(source.status());
  std::optional<std::vector<LiveChunk>> chunks;
  if (fields.model != nullptr) {
    auto read = ChunksFromJson(*fields.model);
    if (!read.ok()) return read.status();
    chunks = *std::move(read);
  }
  auto described = chunks && !source->split ? LayersOfModel(source->geometry, rank, *chunks)
                                            : LayersOfSplit(*source, rank, chunks ? &*chunks : nullptr);
  if (!described.ok()) return InNamesOfDescription(described.status());
  auto layers = WithoutNativeLayers(source->geometry, std::move(described->layers), rank.native_layers);
  if (!layers.ok()) return layers.status();
  described->layers = *std::move(layers);
  if (fields.run_geometry == nullptr) return described;
  auto run = GeometryFromJson(*fields.run_geometry, "run_geometry");
  if (!run.ok()) return run.status();
  std::set<int32_t> may_lack(fields.hash_layers.begin(), fields.hash_layers.end());
  may_lack.insert(rank.native_layers.begin(), rank.native_layers.end());
  absl::Status placed = PlaceInRun(*std::move(run), *source, std::move(may_lack), *described);
  if (!placed.ok()) return placed;
  return described;
}

}  // namespace routing_replay::trainer
