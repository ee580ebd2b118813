#include "trainer_plugin/layout/plan_json.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/json/geometry_json.h"
#include "proto/json/json_object.h"
#include "routing_replay/trainer/plan.h"
#include "trainer_plugin/layout/invalid.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

struct Description {
  Geometry::Options geometry;
  LayerSplit split;
  MicroBatchLayout layout;
  std::vector<std::string> samples;  // Parallel to layout.sequences.
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

absl::Status ReadSequences(const Json& json, Description& description) {
  if (!json.is_array()) return Invalid("micro_batch.sequences", "is not a list");
  for (size_t i = 0; i < json.size(); ++i) {
    JsonObject object(json[i], absl::StrCat("micro_batch.sequences[", i, "]"));
    SequenceShape& shape = description.layout.sequences.emplace_back();
    object.Require("tokens");
    object.Read("tokens", shape.tokens);
    shape.recorded_rows = shape.tokens > 0 ? shape.tokens - 1 : 0;
    object.Read("recorded_rows", shape.recorded_rows);
    object.Read("sample", description.samples.emplace_back());
    if (absl::Status status = object.status(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadMicroBatch(const Json& json, Description& description) {
  JsonObject object(json, "micro_batch");
  MicroBatchLayout& layout = description.layout;
  for (const char* key : {"format", "sequences", "partition"}) object.Require(key);
  object.Read("format", {{"THD", TokenFormat::kThd}, {"BSHD", TokenFormat::kBshd}}, layout.format);
  const bool packed = layout.format == TokenFormat::kThd;
  for (const char* key : {packed ? "cu_seqlens_padded" : "batch_size", packed ? "total_rows" : "padded_length"}) {
    object.Require(key);
  }
  if (packed) {
    object.Read("cu_seqlens_padded", layout.cu_seqlens_padded);
    object.Read("total_rows", layout.total_rows);
  } else {
    object.Read("batch_size", layout.batch_size);
    object.Read("padded_length", layout.padded_length);
    object.Read("row_order", {{"sequence_major", RowOrder::kSequenceMajor}, {"batch_major", RowOrder::kBatchMajor}},
                layout.row_order);
    object.Read("sp_slice", {{"after_flatten", SpSlice::kAfterFlatten}, {"before_flatten", SpSlice::kBeforeFlatten}},
                layout.sp_slice);
  }
  object.Read("partition",
              {{"zigzag_per_document", Partition::kZigzagPerDocument},
               {"zigzag_per_sequence", Partition::kZigzagPerSequence},
               {"contiguous", Partition::kContiguous},
               {"contiguous_per_sequence", Partition::kContiguousPerSequence},
               {"explicit", Partition::kExplicit}},
              layout.partition);
  object.Read("cp_size", layout.cp_size);
  object.Read("tp_size", layout.tp_size);
  object.Read("sequence_parallel", layout.sequence_parallel);
  object.Read("target_rows", layout.target_rows);
  const Json* sequences = object.Find("sequences");
  if (absl::Status status = object.status(); !status.ok()) return status;
  return ReadSequences(*sequences, description);
}

absl::Status ReadRank(const Json& json, PlanRank& rank) {
  JsonObject object(json, "rank");
  object.Read("pp", rank.pp_rank);
  object.Read("chunk", rank.chunk);
  object.Read("cp", rank.rows.cp_rank);
  object.Read("tp", rank.rows.tp_rank);
  object.Read("positions", rank.rows.positions);
  return object.status();
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
  if (status.ok()) status = ReadMicroBatch(*micro_batch, description);
  if (status.ok() && rank != nullptr) status = ReadRank(*rank, description.rank);
  description.split.num_layers = description.geometry.num_layers;
  return status;
}

// The units behind a plan name the fields of their own structures; this is where the description has them.
absl::Status InNamesOfDescription(const absl::Status& status) {
  auto detail = GetErrorDetail(status);
  if (!detail || detail->field.empty()) return status;
  const std::string field = detail->field;
  const bool has_path = absl::StartsWith(field, "split.") || absl::StartsWith(field, "rank.");
  detail->field = field == "split.num_layers" ? "geometry.num_layers"
                  : has_path                  ? field
                                              : absl::StrCat("micro_batch.", field);
  absl::string_view what = status.message();
  if (!absl::ConsumePrefix(&what, absl::StrCat(field, ": "))) return MakeError(status.code(), what, *detail);
  return MakeError(status.code(), absl::StrCat(detail->field, ": ", what), *detail);
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

OrderedJson PlanToJson(const ReplayPlan& plan, const std::vector<std::string>& samples) {
  OrderedJson layers = OrderedJson::array();
  for (const OwnedLayer& layer : plan.layers) {
    layers.push_back({{"layer", layer.layer_id}, {"ordinal", layer.ordinal}, {"chunk", layer.chunk}});
  }
  OrderedJson slices = OrderedJson::array();
  for (const PlanSlice& slice : plan.slices) {
    OrderedJson rows = OrderedJson::array();
    for (const RowRange& range : slice.rows) rows.push_back(OrderedJson::array({range.begin, range.end}));
    slices.push_back({{"sequence", slice.sequence}, {"sample", samples[slice.sequence]}, {"rows", std::move(rows)}});
  }
  return {{"layers", std::move(layers)},
          {"row_map", RowMapToJson(plan.row_map)},
          {"slices", std::move(slices)},
          {"rows_to_read", plan.rows_to_read},
          {"bytes_to_read", plan.bytes_to_read}};
}

}  // namespace

absl::StatusOr<DescribedPlan> DescribedPlanFromJson(absl::string_view text) {
  Description description;
  if (absl::Status status = ReadDescription(text, description); !status.ok()) return status;
  auto geometry = Geometry::Create(description.geometry);
  if (!geometry.ok()) return geometry.status();
  const auto table = LayerTable::Create(description.split);
  if (!table.ok()) return InNamesOfDescription(table.status());
  auto plan = MakeReplayPlan(*geometry, *table, description.layout, description.rank);
  if (!plan.ok()) return InNamesOfDescription(plan.status());
  DescribedPlan out{*std::move(geometry), *std::move(plan), std::move(description.samples), {}};
  for (const SequenceShape& shape : description.layout.sequences) out.num_tokens.push_back(shape.tokens);
  return out;
}

std::string ToJson(const DescribedPlan& plan) {
  // Sample names may be any bytes: what is no UTF-8 is replaced rather than thrown about.
  return PlanToJson(plan.plan, plan.samples).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

absl::StatusOr<std::string> PlanFromJson(absl::string_view text) {
  const auto plan = DescribedPlanFromJson(text);
  if (!plan.ok()) return plan.status();
  return ToJson(*plan);
}

}  // namespace routing_replay::trainer
