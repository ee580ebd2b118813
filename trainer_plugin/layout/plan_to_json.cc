#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/fields.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMaxExplainedRanks = 4096;

template <typename T>
OrderedJson OrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

// Writes the fields of fields.h; fields that are not set are left out.
class FieldWriter {
 public:
  template <typename Value>
  void operator()(const char* name, const Value& value) {
    if constexpr (std::is_enum_v<Value>) {
      json_[name] = std::string(NameOf(value));
    } else {
      json_[name] = value;
    }
  }
  template <typename Value>
  void operator()(const char* name, const std::optional<Value>& value) {
    if (value) json_[name] = *value;
  }
  OrderedJson Take() { return std::move(json_); }

 private:
  OrderedJson json_ = OrderedJson::object();
};

OrderedJson RowMapToJson(const RowMap& map) {
  OrderedJson runs = OrderedJson::array();
  for (RowRun run : map.runs) {
    FieldWriter writer;
    Fields(writer, run);
    runs.push_back(writer.Take());
  }
  OrderedJson json = {{"rows", map.rows},
                      {"replayed", map.replayed_rows},
                      {"unrecorded", map.unrecorded_rows},
                      {"pads", map.pad_rows()}};
  if (map.live_rows > 0) json["live"] = map.live_rows;
  json["runs"] = std::move(runs);
  return json;
}

// Writes the sizes of a plan.
void AddSizes(const ReplayPlan& plan, OrderedJson& json) {
  json["rows_to_read"] = plan.rows_to_read;
  json["bytes_to_read"] = plan.bytes_to_read;
  json["index_bytes"] = plan.index_bytes;
  json["padded_bytes"] = plan.padded_bytes;
}

// Writes the layers of every chunk of every pipeline rank.
absl::StatusOr<OrderedJson> LayersToJson(const Geometry& geometry, const LayerTable& table) {
  OrderedJson list = OrderedJson::array();
  for (int32_t pp = 0; pp < table.pipeline_size(); ++pp) {
    for (int32_t chunk = 0; chunk < table.virtual_stages(); ++chunk) {
      RR_ASSIGN_OR_RETURN(const auto owned, OwnedMoeLayers(geometry, table, pp, chunk));
      std::vector<RowRange> moe;
      for (const OwnedLayer& layer : owned) AppendMerged(moe, {layer.layer_id, layer.layer_id + 1});
      const LayerRange range = table.range(pp, chunk);
      list.push_back({{"pp", pp},
                      {"chunk", chunk},
                      {"decoder_layers", RangesToJson({{range.begin, range.end}})},
                      {"moe_layers", RangesToJson(moe)},
                      {"num_moe", owned.size()},
                      {"mtp", table.mtp_layers(pp, chunk)}});
    }
  }
  return list;
}

// Local rows begin, begin + stride, … below end.
struct LocalRows {
  int64_t begin = 0, end = 0, stride = 1;
};

// The rows that one rank holds of a sequence, or of padding.
struct Held {
  std::vector<RowRange> replayed, unrecorded;
  std::vector<LocalRows> at;
};

// Extends the last run if the new one continues it.
void AddLocalRows(std::vector<LocalRows>& at, int64_t begin, int64_t count, int64_t stride) {
  const int64_t end = begin + (count - 1) * stride + 1;
  if (!at.empty() && at.back().stride == stride && at.back().end - 1 + stride == begin) {
    at.back().end = end;
  } else {
    at.push_back({begin, end, stride});
  }
}

std::string ToText(const LocalRows& rows) {
  const std::string range = absl::StrCat(rows.begin, ":", rows.end);
  return rows.stride == 1 || rows.end - rows.begin == 1 ? range : absl::StrCat(range, ":", rows.stride);
}

// Returns one entry per sequence, and a last one for the padding.
std::vector<Held> HeldRows(const RowMap& map, size_t sequences) {
  std::vector<Held> held(sequences + 1);
  for (const RowRun& run : map.runs) {
    Held& of = held[run.sequence];
    (run.state == RowState::kReplayed ? of.replayed : of.unrecorded).push_back(RowRange::OfSize(run.row, run.count));
    AddLocalRows(of.at, run.local_row, run.count, run.stride);
  }
  const std::vector<LocalRow> rows = ExpandRowMap(map);
  for (int64_t i = 0; i < map.rows; ++i) {
    if (rows[i].state == RowState::kPad) AddLocalRows(held.back().at, i, 1, 1);
  }
  for (Held& of : held) {
    Normalize(of.replayed);  // Zigzag makes two runs of a sequence, which may touch.
    Normalize(of.unrecorded);
  }
  return held;
}

// Lists which rows each rank holds, sorted by sequence and then by rank.
absl::StatusOr<OrderedJson> RowsToJson(const DescribedPlan& described) {
  const MicroBatchLayout& layout = described.layout;
  const int32_t tp_ranks = layout.sequence_parallel ? layout.tp_size : 1;
  if (int64_t{layout.cp_size} * tp_ranks > kMaxExplainedRanks) {
    return Invalid("micro_batch.cp_size",
                   absl::StrCat(int64_t{layout.cp_size} * tp_ranks, " ranks of one micro-batch, at most ",
                                kMaxExplainedRanks, " are explained"));
  }
  std::vector<OrderedJson> by_sequence(described.samples.size() + 1, OrderedJson::array());
  for (int32_t cp = 0; cp < layout.cp_size; ++cp) {
    for (int32_t tp = 0; tp < tp_ranks; ++tp) {
      RR_ASSIGN_OR_RETURN(const RowMap map, BuildRowMap(layout, {.cp_rank = cp, .tp_rank = tp}));
      const std::vector<Held> held = HeldRows(map, described.samples.size());
      for (size_t i = 0; i < held.size(); ++i) {
        if (held[i].at.empty()) continue;
        std::string sample = i < described.samples.size() ? described.samples[i] : "(padding)";
        if (sample.empty()) sample = absl::StrCat("#", i);
        OrderedJson at = OrderedJson::array();
        for (const LocalRows& rows : held[i].at) at.push_back(ToText(rows));
        by_sequence[i].push_back({{"sample", std::move(sample)},
                                  {"cp", cp},
                                  {"tp", layout.sequence_parallel ? OrderedJson(tp) : OrderedJson()},
                                  {"rows", RangesToJson(held[i].replayed)},
                                  {"without_route", RangesToJson(held[i].unrecorded)},
                                  {"at", std::move(at)}});
      }
    }
  }
  OrderedJson list = OrderedJson::array();
  for (const OrderedJson& of : by_sequence) list.insert(list.end(), of.begin(), of.end());
  return list;
}

OrderedJson ToJson(const char* of, const Explanation& explanation) {
  return {{"of", of},
          {"mistakes", explanation.mistakes},
          {"matched", explanation.matched},
          {"compared", explanation.compared},
          {"exact", explanation.exact()},
          {"what", explanation.what}};
}

}  // namespace

OrderedJson LayoutToJson(const MicroBatchLayout& layout) {
  MicroBatchLayout of = layout;
  FieldWriter writer;
  Fields(writer, of);
  ShapeFields(writer, of);
  return writer.Take();
}

OrderedJson PlanToJson(const DescribedPlan& described) {
  const ReplayPlan& plan = described.plan;
  OrderedJson layers = OrderedJson::array();
  for (const OwnedLayer& layer : plan.layers) {
    layers.push_back({{"layer", layer.layer_id}, {"ordinal", layer.ordinal}, {"chunk", layer.chunk}});
  }
  OrderedJson slices = OrderedJson::array();
  for (const PlanSlice& slice : plan.slices) {
    slices.push_back({{"sequence", slice.sequence},
                      {"sample", described.sample(slice.sequence)},
                      {"rows", RangesToJson(slice.rows)}});
  }
  OrderedJson json = {{"layers", std::move(layers)},
                      {"mtp_layers", described.mtp_layers},
                      {"layout", LayoutToJson(described.layout)},
                      {"row_map", RowMapToJson(plan.row_map)},
                      {"slices", std::move(slices)}};
  AddSizes(plan, json);
  json["warnings"] = described.warnings;
  return json;
}

absl::StatusOr<std::string> PlanFromJson(absl::string_view text) {
  RR_ASSIGN_OR_RETURN(const auto plan, DescribedPlanFromJson(text));
  return PlanToJson(plan).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

absl::StatusOr<OrderedJson> ExplainFromJson(absl::string_view description) {
  RR_ASSIGN_OR_RETURN(const auto described, DescribedPlanFromJson(description));
  if (!described.split) return Invalid("split", "is missing: rank.model only describes one rank");
  RR_ASSIGN_OR_RETURN(const auto table, LayerTable::Create(*described.split));
  RR_ASSIGN_OR_RETURN(const auto layers, LayersToJson(described.geometry, table));
  RR_ASSIGN_OR_RETURN(const auto rows, RowsToJson(described));
  OrderedJson rank = {{"pp", described.rank.pp_rank},
                      {"chunk", OrNull(described.rank.chunk)},
                      {"cp", described.rank.rows.cp_rank},
                      {"tp", described.rank.rows.tp_rank},
                      {"local_rows", described.plan.row_map.rows}};
  AddSizes(described.plan, rank);
  return OrderedJson{{"layers", layers}, {"rows", rows}, {"rank", std::move(rank)}, {"warnings", described.warnings}};
}

absl::StatusOr<OrderedJson> JudgeIds(const DescribedPlan& described, const std::vector<RouteIds>& recorded,
                                     const RouteIds& live, bool replayed) {
  RR_ASSIGN_OR_RETURN(const auto judged, JudgeAlignment({.geometry = described.geometry,
                                                         .split = described.split ? &*described.split : nullptr,
                                                         .layers = described.plan.layers,
                                                         .layout = described.layout,
                                                         .rank = described.rank,
                                                         .recorded = recorded,
                                                         .live = live,
                                                         .replayed = replayed}));
  return OrderedJson{
      {"misaligned", judged.misaligned},
      {"kept", judged.kept},
      {"chance", judged.chance},
      {"explained_kept", judged.explained_kept},
      {"sequence", OrNull(judged.sequence)},
      {"layer", OrNull(judged.layer_id)},
      {"explanations", OrderedJson::array({ToJson("rows", judged.rows), ToJson("layers", judged.layers)})}};
}

}  // namespace routing_replay::trainer
