#include <utility>

#include "proto/json/json.h"
#include "proto/wire/status_macros.h"
#include "trainer_plugin/layout/fields.h"
#include "trainer_plugin/layout/plan_json.h"

namespace routing_replay::trainer {
namespace {

using OrderedJson = nlohmann::ordered_json;

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
  OrderedJson json = {{"layers", std::move(layers)},           {"layout", LayoutToJson(described.layout)},
                      {"row_map", RowMapToJson(plan.row_map)}, {"slices", std::move(slices)},
                      {"rows_to_read", plan.rows_to_read},     {"bytes_to_read", plan.bytes_to_read},
                      {"warnings", described.warnings}};
  return json;
}

absl::StatusOr<std::string> PlanFromJson(absl::string_view text) {
  RR_ASSIGN_OR_RETURN(const auto plan, DescribedPlanFromJson(text));
  return PlanToJson(plan).dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

absl::StatusOr<OrderedJson> JudgeIds(const DescribedPlan& described, const std::vector<RouteIds>& recorded,
                                     const RouteIds& live, bool replayed) {
  RR_ASSIGN_OR_RETURN(const auto judged, JudgeAlignment({.geometry = described.geometry,
                                                         .split = described.split,
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
