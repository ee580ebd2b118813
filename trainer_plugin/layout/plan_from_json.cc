#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/json/json.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/plan_json.h"
#include "trainer_plugin/layout/read_fields.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;

// Decides which layers a rank replays. This depends on geometry and split, the rank's live model, the layers that the
// run lacks, and the native layers.

// Fields of the description; null where they are absent.
struct LayerFields {
  const Json* geometry = nullptr;  // The geometry of the model.
  const Json* split = nullptr;
  const Json* run_geometry = nullptr;  // The geometry of the run, given if the run lacks hash layers or native layers.
  std::vector<int32_t> hash_layers;
  const Json* model = nullptr;  // From its field "rank".
};

struct DescribedLayers {
  Geometry geometry;
  std::optional<LayerSplit> split;  // Not set if only the live model says which layers the rank has.
  std::vector<OwnedLayer> layers;   // The layers to replay on this rank; ids ascend.
  int32_t mtp_layers = 0;           // Number of MTP layers in the planned chunks, which are not replayed.
};

absl::Status InNamesOfDescription(const absl::Status& status) {
  return FieldOf(status) == "split.num_layers" ? WithField(status, "geometry.num_layers") : status;
}

absl::StatusOr<Geometry> GeometryFromJson(const Json& json, absl::string_view path) {
  RR_ASSIGN_OR_RETURN(const auto options, GeometryOptionsFromJson(json, path));
  return Geometry::Create(options);
}

// Returns the split of a description; nothing if it has none.
absl::StatusOr<std::optional<LayerSplit>> SplitFromJson(const Json* json, const Geometry& geometry) {
  if (json == nullptr) return std::nullopt;
  LayerSplit split{.num_layers = geometry.num_layers()};
  RR_RETURN_IF_ERROR(ReadFields(*json, "split", split));
  return split;
}

absl::StatusOr<std::vector<LiveChunk>> ChunksFromJson(const Json& json) {
  if (!json.is_array()) return Invalid("rank.model", "must be a list of chunks");
  std::vector<LiveChunk> chunks;
  for (const Json& one : json) {
    const std::string path = absl::StrCat("rank.model[", chunks.size(), "]");
    absl::Status status = ReadFields(one, path, chunks.emplace_back(), "layer_numbers");
    if (!status.ok()) return status;
  }
  return chunks;
}

// Checks that pattern and geometry agree on which layers have routes, if both are given.
absl::Status CheckPattern(const Geometry& geometry, const LayerSplit& split) {
  if (!split.hybrid) return absl::OkStatus();
  std::vector<int32_t> ids;
  for (const LayerRouting& layer : geometry.layers()) ids.push_back(layer.layer_id);
  if (ids == split.hybrid->moe_layer_ids) return absl::OkStatus();
  return Invalid("split.hybrid_pattern",
                 absl::StrCat("its ", split.hybrid->moe_layer_ids.size(), " layers E are not the ", ids.size(),
                              " MoE layers of the geometry"));
}

// Returns the layers in the table, after checking them against the model.
absl::StatusOr<DescribedLayers> LayersOfSplit(const Geometry& geometry, const LayerSplit& split, const PlanRank& rank,
                                              const std::optional<std::vector<LiveChunk>>& chunks) {
  RR_ASSIGN_OR_RETURN(const auto table, LayerTable::Create(split));
  RR_RETURN_IF_ERROR(CheckPattern(geometry, split));
  RR_ASSIGN_OR_RETURN(auto layers, OwnedMoeLayers(geometry, table, rank.pp_rank, rank.chunk));
  if (chunks) {
    RR_ASSIGN_OR_RETURN(const auto difference,
                        LiveDifference(geometry, table, rank.pp_rank, *chunks, rank.native_layers));
    if (difference) return Invalid("rank.model", *difference);
  }
  DescribedLayers described{geometry, split, std::move(layers)};
  for (int32_t v = 0; v < table.virtual_stages(); ++v) {
    if (!rank.chunk || *rank.chunk == v) described.mtp_layers += table.mtp_layers(rank.pp_rank, v);
  }
  return described;
}

// Returns the layers that the model has, if there is no split.
absl::StatusOr<DescribedLayers> LayersOfModel(const Geometry& geometry, const PlanRank& rank,
                                              const std::vector<LiveChunk>& chunks) {
  const int32_t count = static_cast<int32_t>(chunks.size());
  if (rank.chunk && (*rank.chunk < 0 || *rank.chunk >= count)) {
    return Invalid("rank.chunk", absl::StrCat(*rank.chunk, " is not in [0, ", count, ")"));
  }
  RR_ASSIGN_OR_RETURN(auto layers, OwnedMoeLayers(geometry, chunks));
  DescribedLayers described{geometry};
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(described.layers),
               [&](const OwnedLayer& layer) { return !rank.chunk || layer.chunk == *rank.chunk; });
  for (int32_t v = 0; v < count; ++v) {
    if (!rank.chunk || *rank.chunk == v) {
      described.mtp_layers += static_cast<int32_t>(chunks[v].mtp_layer_numbers.size());
    }
  }
  return described;
}

// An engine that does not capture hash layers records a run without them. The other layers then have other ordinals in
// the run.
absl::Status PlaceInRun(Geometry run, const std::set<int32_t>& may_lack, DescribedLayers& described) {
  const Geometry& model = described.geometry;
  const std::vector<LayerRouting> own(run.layers().begin(), run.layers().end());
  std::vector<LayerRouting> both;
  for (const LayerRouting& layer : model.layers()) {
    if (run.FindOrdinal(layer.layer_id) || may_lack.count(layer.layer_id) == 0) both.push_back(layer);
  }
  if (both != own || run.num_layers() != model.num_layers()) {
    return Invalid(Reason::kGeometryMismatch, "run_geometry",
                   absl::StrCat(run.DebugString(), " is not that of the model, ", model.DebugString()));
  }
  for (OwnedLayer& layer : described.layers) {
    const auto ordinal = run.FindOrdinal(layer.layer_id);
    if (!ordinal) {
      return Invalid(Reason::kGeometryMismatch, "run_geometry",
                     absl::StrCat("the model's router of layer ", layer.layer_id,
                                  " chooses by scores, but the run has no routes of that layer"));
    }
    layer.ordinal = *ordinal;
  }
  described.geometry = std::move(run);
  return absl::OkStatus();
}

// Decides the layers of this rank. Uses all fields of `rank` except `rows`.
absl::StatusOr<DescribedLayers> LayersFrom(const LayerFields& fields, const PlanRank& rank) {
  const auto geometry = GeometryFromJson(*fields.geometry, "geometry");
  if (!geometry.ok()) return InNamesOfDescription(geometry.status());
  const auto split = SplitFromJson(fields.split, *geometry);
  if (!split.ok()) return InNamesOfDescription(split.status());
  std::optional<std::vector<LiveChunk>> chunks;
  if (fields.model != nullptr) {
    RR_ASSIGN_OR_RETURN(auto read, ChunksFromJson(*fields.model));
    chunks = std::move(read);
  }
  const LayerSplit one_stage{.num_layers = geometry->num_layers()};
  auto described = chunks && !*split ? LayersOfModel(*geometry, rank, *chunks)
                                     : LayersOfSplit(*geometry, split->value_or(one_stage), rank, chunks);
  if (!described.ok()) return InNamesOfDescription(described.status());
  RR_ASSIGN_OR_RETURN(auto layers, WithoutNativeLayers(*geometry, std::move(described->layers), rank.native_layers));
  described->layers = std::move(layers);
  if (fields.run_geometry == nullptr) return described;
  RR_ASSIGN_OR_RETURN(auto run, GeometryFromJson(*fields.run_geometry, "run_geometry"));
  std::set<int32_t> may_lack(fields.hash_layers.begin(), fields.hash_layers.end());
  may_lack.insert(rank.native_layers.begin(), rank.native_layers.end());
  absl::Status placed = PlaceInRun(std::move(run), may_lack, *described);
  if (!placed.ok()) return placed;
  return described;
}

// The parts of a description, read and checked, from which the plan is made.
struct Description {
  DescribedLayers layers;
  DescribedMicroBatch micro_batch;
  PlanRank rank;
};

absl::StatusOr<Description> ReadDescription(const Json& json) {
  JsonObject object(json, "");
  LayerFields fields;
  PlanRank rank;
  object.Require("geometry");
  fields.geometry = object.Find("geometry");
  fields.run_geometry = object.Find("run_geometry");
  object.Read("hash_layers", fields.hash_layers);
  fields.split = object.Find("split");
  object.Read("native_layers", rank.native_layers);
  object.Require("micro_batch");
  const Json* micro_batch = object.Find("micro_batch");
  const Json* of_rank = object.Find("rank");
  RR_RETURN_IF_ERROR(object.status());
  RR_ASSIGN_OR_RETURN(auto described, MicroBatchFromJson(*micro_batch));
  if (of_rank != nullptr) {
    JsonObject fields_of_rank(*of_rank, "rank");
    Fields(FieldReader(fields_of_rank), rank);
    fields.model = fields_of_rank.Find("model");
    RR_RETURN_IF_ERROR(fields_of_rank.status());
  }
  RR_ASSIGN_OR_RETURN(auto layers, LayersFrom(fields, rank));
  const auto is_absent = [&](int32_t layer) { return !layers.geometry.FindOrdinal(layer); };
  std::erase_if(rank.native_layers, is_absent);
  return Description{std::move(layers), std::move(described), std::move(rank)};
}

}  // namespace

Json WithoutNulls(Json json) {
  if (json.is_object()) {
    for (auto field = json.begin(); field != json.end();) field = field->is_null() ? json.erase(field) : ++field;
  }
  if (!json.empty() && (json.is_object() || (json.is_array() && json.front().is_structured()))) {
    for (Json& one : json) one = WithoutNulls(std::move(one));
  }
  return json;
}

absl::Status WithField(const absl::Status& status, absl::string_view field) {
  auto detail = GetErrorDetail(status);
  if (!detail) return status;
  absl::string_view what = status.message();
  const bool named = absl::ConsumePrefix(&what, absl::StrCat(detail->field, ": "));
  detail->field = std::string(field);
  return MakeError(status.code(), named ? absl::StrCat(field, ": ", what) : std::string(what), *detail);
}

std::string FieldOf(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail ? detail->field : "";
}

absl::StatusOr<PipelineLayout> PipelineLayoutFromJson(const Json& json) {
  const absl::Status wrong = Invalid("split.layout", "must be a text or a list of lists of names");
  if (json.is_string()) return ParsePipelineLayout(json.get<std::string>());
  if (!json.is_array()) return wrong;
  std::vector<std::vector<std::string>> stages;
  for (const Json& stage : json) {
    if (!stage.is_array()) return wrong;
    std::vector<std::string>& names = stages.emplace_back();
    for (const Json& name : stage) {
      if (!name.is_string()) return wrong;
      names.push_back(name.get<std::string>());
    }
  }
  return PipelineLayoutFromNames(stages);
}

absl::StatusOr<DescribedPlan> DescribedPlanFromJson(absl::string_view text) {
  RR_ASSIGN_OR_RETURN(Json json, ParseJson(text, "the description"));
  RR_ASSIGN_OR_RETURN(auto description, ReadDescription(WithoutNulls(std::move(json))));
  auto& [layers, micro_batch, rank] = description;
  auto plan =
      MakeReplayPlan(layers.geometry, std::move(layers.layers), micro_batch.layout, rank.rows, micro_batch.pieces);
  if (!plan.ok()) {
    const std::string field = FieldOf(plan.status());
    if (field.empty() || absl::StartsWith(field, "rank.")) return plan.status();
    return WithField(plan.status(), absl::StrCat("micro_batch.", field));
  }
  return DescribedPlan{std::move(layers.geometry),
                       std::move(layers.split),
                       std::move(rank),
                       *std::move(plan),
                       std::move(micro_batch.layout),
                       std::move(micro_batch.samples),
                       std::move(micro_batch.pieces),
                       micro_batch.last_row_filler,
                       std::move(micro_batch.warnings),
                       layers.mtp_layers};
}

std::vector<int64_t> DescribedPlan::last_rows() const {
  std::vector<int64_t> last;
  if (!last_row_filler) return last;
  for (size_t i = 0; pieces.empty() && i < layout.sequences.size(); ++i) {
    const SequenceShape& shape = layout.sequences[i];
    last.push_back(shape.recorded_rows == shape.tokens - 1 ? shape.recorded_rows : -1);
  }
  // A piece in the middle of a sequence gets no filler, because later tokens may attend to its last token.
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SequencePiece& piece = pieces[i];
    const bool ends = i + 1 == pieces.size() || pieces[i + 1].sequence != piece.sequence;
    last.push_back(ends && piece.rows == piece.tokens - 1 ? piece.start + piece.rows : -1);
  }
  return last;
}

}  // namespace routing_replay::trainer
