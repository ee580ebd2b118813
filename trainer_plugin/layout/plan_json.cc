#include "trainer_plugin/layout/plan_json.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "routing_replay/trainer/context_parallel.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/layers_json.h"
#include "trainer_plugin/layout/micro_batch_json.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct Description {
  DescribedLayers layers;
  DescribedMicroBatch micro_batch;
  PlanRank rank;
};

// `model`: what the live model says, where it is told.
absl::Status ReadRank(const Json* json, const DescribedMicroBatch& micro_batch, PlanRank& rank, const Json*& model) {
  if (json == nullptr) return absl::OkStatus();
  JsonObject object(*json, "rank");
  std::optional<int32_t> dp_cp;
  object.Read("dp_cp", dp_cp);
  object.Read("pp", rank.pp_rank);
  object.Read("chunk", rank.chunk);
  model = object.FindValue("model");
  object.Read("cp", rank.rows.cp_rank);
  object.Read("tp", rank.rows.tp_rank);
  if (object.FindValue("positions") != nullptr) object.Read("positions", rank.rows.positions);
  const bool has_cp = object.FindValue("cp") != nullptr;
  if (!object.status().ok() || !dp_cp) return object.status();
  if (has_cp) return Invalid("rank.dp_cp", "is given beside cp: which of them is it?");
  if (!micro_batch.dp_cp_size) return Invalid("rank.dp_cp", "is given without micro_batch.dp_cp_size");
  const auto local = LocalCpRank(*dp_cp, *micro_batch.dp_cp_size, micro_batch.layout.cp_size);
  if (!local.ok()) return local.status();
  rank.rows.cp_rank = local->rank;
  return absl::OkStatus();
}

absl::StatusOr<Description> ReadDescription(absl::string_view text) {
  const absl::StatusOr<Json> json = ParseJson(text, "the description");
  if (!json.ok()) return json.status();
  JsonObject object(*json, "");
  LayerFields fields;
  PlanRank plan_rank;
  object.Require("geometry");
  fields.geometry = object.Find("geometry");
  fields.run_geometry = object.FindValue("run_geometry");
  object.Read("hash_layers", fields.hash_layers);
  fields.split = object.FindValue("split");
  object.Read("native_layers", plan_rank.native_layers);
  object.Require("micro_batch");
  const Json* micro_batch = object.Find("micro_batch");
  const Json* rank = object.FindValue("rank");
  if (absl::Status status = object.status(); !status.ok()) return status;
  auto described = MicroBatchFromJson(*micro_batch);
  if (!described.ok()) return described.status();
  absl::Status status = ReadRank(rank, *described, plan_rank, fields.model);
  if (!status.ok()) return status;
  auto layers = DescribedLayersFromJson(fields, plan_rank);
  if (!layers.ok()) return layers.status();
  std::vector<int32_t>& native = plan_rank.native_layers;
  const auto is_absent = [&](int32_t layer) { return !layers->geometry.FindOrdinal(layer); };
  native.erase(std::remove_if(native.begin(), native.end(), is_absent), native.end());
  return Description{*std::move(layers), *std::move(described), std::move(plan_rank)};
}

// The row map names the fields of its own structures; this is where the description has them.
absl::Status InNamesOfDescription(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return !detail || detail->field.empty() || absl::StartsWith(detail->field, "rank.") ? status : InMicroBatch(status);
}

const char* StateName(RowState state) {
  if (state == RowState::kReplayed) return "replayed";
  return state == RowState::kLive ? "live" : "unrecorded";
}

OrderedJson RowMapToJson(const RowMap& map) {
  OrderedJson runs = OrderedJson::array();
  for (const RowRun& run : map.runs) {
    runs.push_back({{"local_row", run.local_row},
                    {"stride", run.stride},
                    {"count", run.count},
                    {"sequence", run.sequence},
                    {"row", run.row},
                    {"state", StateName(run.state)}});
  }
  OrderedJson json = {{"rows", map.rows},
                      {"replayed", map.replayed_rows},
                      {"unrecorded", map.unrecorded_rows},
                      {"pads", map.pad_rows()}};
  if (map.live_rows > 0) json["live"] = map.live_rows;
  json["runs"] = std::move(runs);
  return json;
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
        {{"sequence", slice.sequence}, {"sample", described.sample(slice.sequence)}, {"rows", std::move(rows)}});
  }
  return {{"layers", std::move(layers)},
          {"mtp_layers", described.mtp_layers},
          {"layout", LayoutToJson(described.layout)},
          {"row_map", RowMapToJson(plan.row_map)},
          {"slices", std::move(slices)},
          {"rows_to_read", plan.rows_to_read},
          {"bytes_to_read", plan.bytes_to_read},
          {"index_bytes", plan.index_bytes},
          {"padded_bytes", plan.padded_bytes},
          {"warnings", described.warnings}};
}

}  // namespace

absl::StatusOr<DescribedPlan> DescribedPlanFromJson(absl::string_view text) {
  auto description = ReadDescription(text);
  if (!description.ok()) return description.status();
  auto& [layers, micro_batch, rank] = *description;
  auto plan =
      MakeReplayPlan(layers.geometry, std::move(layers.layers), micro_batch.layout, rank.rows, micro_batch.pieces);
  if (!plan.ok()) return InNamesOfDescription(plan.status());
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
  // What follows in its sequence may attend to the last token of a piece.
  for (size_t i = 0; i < pieces.size(); ++i) {
    const SequencePiece& piece = pieces[i];
    const bool ends = i + 1 == pieces.size() || pieces[i + 1].sequence != piece.sequence;
    last.push_back(ends && piece.rows == piece.tokens - 1 ? piece.start + piece.rows : -1);
  }
  return last;
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
