#include "trainer_plugin/layout/explain_json.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json_object.h"
#include "proto/json/wire_json.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/explain.h"

namespace routing_replay::trainer {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr size_t kNearest = 3;

template <typename T>
OrderedJson OrNull(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

OrderedJson LayersToJson(const std::vector<HeldLayers>& held) {
  OrderedJson list = OrderedJson::array();
  for (const HeldLayers& layers : held) {
    list.push_back({{"pp", layers.pp_rank},
                    {"chunk", layers.chunk},
                    {"decoder_layers", RangesToJson({{layers.decoder.begin, layers.decoder.end}})},
                    {"moe_layers", RangesToJson(layers.moe)},
                    {"num_moe", layers.num_moe},
                    {"mtp", layers.mtp}});
  }
  return list;
}

std::string ToText(const LocalRows& rows) {
  const std::string range = absl::StrCat(rows.begin, ":", rows.end);
  return rows.stride == 1 || rows.end - rows.begin == 1 ? range : absl::StrCat(range, ":", rows.stride);
}

OrderedJson RowsToJson(const std::vector<HeldRows>& held, const std::vector<std::string>& samples) {
  OrderedJson list = OrderedJson::array();
  for (const HeldRows& rows : held) {
    std::string sample = "(padding)";
    if (rows.sequence) {
      sample = samples[*rows.sequence];
      if (sample.empty()) sample = absl::StrCat("#", *rows.sequence);
    }
    OrderedJson at = OrderedJson::array();
    for (const LocalRows& local : rows.at) at.push_back(ToText(local));
    list.push_back({{"sample", std::move(sample)},
                    {"cp", rows.cp_rank},
                    {"tp", OrNull(rows.tp_rank)},
                    {"rows", RangesToJson(rows.replayed)},
                    {"without_route", RangesToJson(rows.unrecorded)},
                    {"at", std::move(at)}});
  }
  return list;
}

OrderedJson RankToJson(const DescribedPlan& described) {
  const PlanRank& rank = described.rank;
  return {{"pp", rank.pp_rank},
          {"chunk", OrNull(rank.chunk)},
          {"cp", rank.rows.cp_rank},
          {"tp", rank.rows.tp_rank},
          {"local_rows", described.plan.row_map.rows},
          {"rows_to_read", described.plan.rows_to_read},
          {"bytes_to_read", described.plan.bytes_to_read},
          {"index_bytes", described.plan.index_bytes},
          {"padded_bytes", described.plan.padded_bytes}};
}

// What all ranks of a pipeline hold is in its split alone.
absl::StatusOr<LayerSplit> SplitOf(const DescribedPlan& described) {
  if (described.split) return *described.split;
  return Invalid("split", "is missing: rank.model says what one rank holds");
}

// One entry of "observed.rows".
absl::StatusOr<LocalRow> RowFromJson(const Json& entry, size_t sequences, const std::string& path) {
  if (entry.is_null()) return LocalRow{};
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_number_unsigned() || !entry[1].is_number_unsigned()) {
    return Invalid(path, "is neither [sequence, row] nor null");
  }
  if (entry[0] >= sequences || entry[1] >= kMaxStreamRows) return Invalid(path, "names no row of the micro-batch");
  return LocalRow{entry[0], entry[1], RowState::kReplayed};
}

absl::Status ReadObserved(const Json& json, Observed& observed) {
  JsonObject object(json, "observed");
  object.Read("layers", observed.layers);
  const Json* rows = object.FindValue("rows");
  observed.has_layers = object.FindValue("layers") != nullptr;
  observed.has_rows = rows != nullptr;
  if (absl::Status status = object.status(); !status.ok()) return status;
  if (!observed.has_rows && !observed.has_layers) return Invalid("observed", "has neither rows nor layers");
  if (rows == nullptr) return absl::OkStatus();
  if (!rows->is_array()) return Invalid("observed.rows", "is not a list");
  for (size_t i = 0; i < rows->size(); ++i) {
    const auto row = RowFromJson((*rows)[i], observed.described.samples.size(), absl::StrCat("observed.rows[", i, "]"));
    if (!row.ok()) return row.status();
    observed.rows.push_back(*row);
  }
  return absl::OkStatus();
}

OrderedJson ToJson(const char* of, const Explanation& explanation) {
  return {{"of", of},
          {"mistakes", explanation.mistakes},
          {"matched", explanation.matched},
          {"compared", explanation.compared},
          {"exact", explanation.exact()},
          {"what", explanation.what}};
}

void AddBest(const char* of, const std::vector<Explanation>& explanations, OrderedJson& list) {
  const Explanation& best = explanations.front();
  if (best.matched == 0 && !best.exact()) {
    list.push_back(ToJson(of, {{}, "no known mistake gives any of these", 0, best.compared}));
    return;
  }
  for (size_t i = 0; i < explanations.size(); ++i) {
    if (best.exact() ? !explanations[i].exact() : i >= kNearest || explanations[i].matched == 0) break;
    list.push_back(ToJson(of, explanations[i]));
  }
}

}  // namespace

absl::StatusOr<OrderedJson> ExplainFromJson(absl::string_view description) {
  const auto described = DescribedPlanFromJson(description);
  if (!described.ok()) return described.status();
  const auto split = SplitOf(*described);
  if (!split.ok()) return split.status();
  const auto table = LayerTable::Create(*split);
  if (!table.ok()) return table.status();
  const auto layers = ExplainLayerTable(described->geometry, *table);
  if (!layers.ok()) return layers.status();
  const auto rows = ExplainMicroBatch(described->layout, described->rank.rows);
  if (!rows.ok()) return rows.status();
  return OrderedJson{{"layers", LayersToJson(*layers)},
                     {"rows", RowsToJson(*rows, described->samples)},
                     {"rank", RankToJson(*described)},
                     {"warnings", described->warnings}};
}

absl::StatusOr<Observed> ObservedFromJson(absl::string_view text) {
  absl::StatusOr<Json> json = ParseJson(text, "the description");
  if (!json.ok()) return json.status();
  if (!json->is_object() || !json->contains("observed")) return Invalid("observed", "is missing");
  const Json seen = std::move((*json)["observed"]);
  json->erase("observed");
  auto described = DescribedPlanFromJson(json->dump());
  if (!described.ok()) return described.status();
  Observed observed{.described = *std::move(described)};
  if (absl::Status status = ReadObserved(seen, observed); !status.ok()) return status;
  return observed;
}

absl::StatusOr<OrderedJson> Diagnose(const Observed& observed) {
  const DescribedPlan& described = observed.described;
  OrderedJson list = OrderedJson::array();
  if (observed.has_rows) {
    const auto rows = ExplainRows(described.layout, described.rank.rows, observed.rows);
    if (!rows.ok()) return rows.status();
    AddBest("rows", *rows, list);
  }
  if (observed.has_layers) {
    const auto split = SplitOf(described);
    if (!split.ok()) return split.status();
    const auto layers = ExplainLayers(described.geometry, *split, described.rank, observed.layers);
    if (!layers.ok()) return layers.status();
    AddBest("layers", *layers, list);
  }
  return list;
}

absl::StatusOr<OrderedJson> DiagnoseIds(const DescribedPlan& described, const std::vector<RouteIds>& recorded,
                                        const RouteIds& seen) {
  const auto split = SplitOf(described);
  if (!split.ok()) return split.status();
  const auto found = ExplainIds(described.geometry, *split, described.layout, described.rank, recorded, seen);
  if (!found.ok()) return found.status();
  return OrderedJson::array({ToJson("rows", found->rows), ToJson("layers", found->layers)});
}

absl::StatusOr<OrderedJson> JudgeIds(const DescribedPlan& described, const std::vector<RouteIds>& recorded,
                                     const RouteIds& live) {
  const auto judged = JudgeAlignment({.geometry = described.geometry,
                                      .split = described.split ? &*described.split : nullptr,
                                      .layers = described.plan.layers,
                                      .layout = described.layout,
                                      .rank = described.rank,
                                      .recorded = recorded,
                                      .live = live});
  if (!judged.ok()) return judged.status();
  return OrderedJson{
      {"misaligned", judged->misaligned},
      {"kept", judged->kept},
      {"chance", judged->chance},
      {"explained_kept", judged->explained_kept},
      {"sequence", OrNull(judged->sequence)},
      {"layer", OrNull(judged->layer_id)},
      {"explanations", OrderedJson::array({ToJson("rows", judged->rows), ToJson("layers", judged->layers)})}};
}

}  // namespace routing_replay::trainer
