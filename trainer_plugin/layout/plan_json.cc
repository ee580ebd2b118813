#include "trainer_plugin/layout/plan_json.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/json/geometry_json.h"
#include "proto/json/json_object.h"
#include "routing_replay/trainer/context_parallel.h"
#include "routing_replay/trainer/plan.h"
#include "trainer_plugin/layout/invalid.h"
#include "trainer_plugin/layout/micro_batch_json.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct Description {
  Geometry::Options geometry;
  LayerSplit split;
  DescribedMicroBatch micro_batch;
  PlanRank rank;
};

absl::Status ReadSplit(const Json& json, LayerSplit& split) {
  JsonObject object(json, "split");
  object.Read("pipeline_size", split.pipeline_size);
  object.Read("virtual_stages", split.virtual_stages);
  object.Read("first_stage_layers", split.first_stage_layers);
  object.Read("last_stage_layers", split.last_stage_layers);
  object.Read("account_for_embedding", split.account_for_embedding);
  object.Read("account_for_loss", split.account_for_loss);
  return object.status();
}

absl::Status ReadRank(const Json& json, const DescribedMicroBatch& micro_batch, PlanRank& rank) {
  JsonObject object(json, "rank");
  std::optional<int32_t> dp_cp;
  object.Read("dp_cp", dp_cp);
  object.Read("pp", rank.pp_rank);
  object.Read("chunk", rank.chunk);
  object.Read("cp", rank.rows.cp_rank);
  object.Read("tp", rank.rows.tp_rank);
  object.Read("positions", rank.rows.positions);
  if (!object.status().ok() || !dp_cp) return object.status();
  if (!micro_batch.dp_cp_size) return Invalid("rank.dp_cp", "is given without micro_batch.dp_cp_size");
  const auto local = LocalCpRank(*dp_cp, *micro_batch.dp_cp_size, micro_batch.layout.cp_size);
  if (!local.ok()) return local.status();
  rank.rows.cp_rank = local->rank;
  return absl::OkStatus();
}

absl::Status ReadDescription(absl::string_view text, Description& description) {
  const absl::StatusOr<Json> json = ParseJson(text, "the description");
  if (!json.ok()) return json.status();
  JsonObject object(*json, "");
  object.Require("geometry");
  object.Require("micro_batch");
  const Json* geometry = object.Find("geometry");
  const Json* split = object.Find("split");
  const Json* micro_batch = object.Find("micro_batch");
  const Json* rank = object.Find("rank");
  absl::Status status = object.status();
  if (!status.ok()) return status;
  absl::StatusOr<Geometry::Options> options = GeometryOptionsFromJson(*geometry, "geometry");
  if (!options.ok()) return options.status();
  description.geometry = *std::move(options);
  if (status.ok() && split != nullptr) status = ReadSplit(*split, description.split);
  if (!status.ok()) return status;
  auto described = MicroBatchFromJson(*micro_batch);
  if (!described.ok()) return described.status();
  description.micro_batch = *std::move(described);
  if (rank != nullptr) status = ReadRank(*rank, description.micro_batch, description.rank);
  description.split.num_layers = description.geometry.num_layers;
  return status;
}

// The units behind a plan name the fields of their own structures; this is where the description has them.
absl::Status InNamesOfDescription(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  const std::string field = detail ? detail->field : "";
  if (field == "split.num_layers") return WithField(status, "geometry.num_layers");
  const bool has_path = field.empty() || absl::StartsWith(field, "split.") || absl::StartsWith(field, "rank.");
  return has_path ? status : InMicroBatch(status);
}

OrderedJson RowMapToJson(const RowMap& map) {
  OrderedJson runs = OrderedJson::array();
  for (const RowRun& run : map.runs) {
    runs.push_back({{"local_row", run.local_row},
                    {"stride", run.stride},
                    {"count", run.count},
                    {"sequence", run.sequence},
                    {"row", run.row},
                    {"state", run.state == RowState::kReplayed ? "replayed" : "unrecorded"}});
  }
  return {{"rows", map.rows},
          {"replayed", map.replayed_rows},
          {"unrecorded", map.unrecorded_rows},
          {"pads", map.pad_rows()},
          {"runs", std::move(runs)}};
}

OrderedJson PlanToJson(const DescribedPlan& described) {
  const ReplayPlan& plan = described.plan;
  OrderedJson layers = OrderedJson::array();
  for (const OwnedLayer& layer : plan.layers) {
    layers.push_back({{"layer", layer.layer_id}, {"ordinal", layer.ordinal}, {"chunk", layer.chunk}});
  }
  OrderedJson slices = OrderedJson::array();
  for (const PlanSlice& slice : plan.slices) {
    OrderedJson rows = OrderedJson::array();
    for (const RowRange& range : slice.rows) rows.push_back(OrderedJson::array({range.begin, range.end}));
    slices.push_back(
        {{"sequence", slice.sequence}, {"sample", described.samples[slice.sequence]}, {"rows", std::move(rows)}});
  }
  return {{"layers", std::move(layers)},           {"layout", LayoutToJson(described.layout)},
          {"row_map", RowMapToJson(plan.row_map)}, {"slices", std::move(slices)},
          {"rows_to_read", plan.rows_to_read},     {"bytes_to_read", plan.bytes_to_read},
          {"warnings", described.warnings}};
}

}  // namespace

absl::StatusOr<DescribedPlan> DescribedPlanFromJson(absl::string_view text) {
  Description description;
  if (absl::Status status = ReadDescription(text, description); !status.ok()) return status;
  auto geometry = Geometry::Create(description.geometry);
  if (!geometry.ok()) return geometry.status();
  const auto table = LayerTable::Create(description.split);
  if (!table.ok()) return InNamesOfDescription(table.status());
  DescribedMicroBatch& micro_batch = description.micro_batch;
  auto plan = MakeReplayPlan(*geometry, *table, micro_batch.layout, description.rank);
  if (!plan.ok()) return InNamesOfDescription(plan.status());
  return DescribedPlan{
      *std::move(geometry),          std::move(description.split),   std::move(description.rank),    *std::move(plan),
      std::move(micro_batch.layout), std::move(micro_batch.samples), std::move(micro_batch.warnings)};
}

std::string ToJson(const DescribedPlan& plan) {
  // Sample names may be any bytes: what is no UTF-8 is replaced rather than thrown about.
  return PlanToJson(plan).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

absl::StatusOr<std::string> PlanFromJson(absl::string_view text) {
  const auto plan = DescribedPlanFromJson(text);
  if (!plan.ok()) return plan.status();
  return ToJson(*plan);
}

}  // namespace routing_replay::trainer
