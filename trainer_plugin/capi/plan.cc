// Errors, bytes, plans.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/token_ids.h"
#include "routing_replay/wire/checksum.h"
#include "trainer_plugin/capi/objects.h"
#include "trainer_plugin/replay/compact_id.h"

using namespace routing_replay;        // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;  // NOLINT(build/namespaces)

namespace {

absl::Status CheckSlot(const trainer::BufferLayout& layout, int32_t slot) {
  if (slot >= 0 && slot < layout.num_layers()) return absl::OkStatus();
  return Invalid(Reason::kField, "slot", absl::StrCat(slot, " is not in [0, ", layout.num_layers(), ")"));
}

absl::StatusOr<TokenArray> TokenArrayFrom(absl::string_view text) {
  const auto value = ParseJson(text, "tokens");
  if (!value.ok()) return value.status();
  TokenArray array;
  JsonObject object(*value, "tokens");
  object.Require("dtype");
  object.Read("dtype", array.dtype);
  object.Read("axes", array.axes);
  object.Read("field", array.field);
  object.Read("sample", array.sample);
  if (absl::Status status = object.status(); !status.ok()) return status;
  return array;
}

}  // namespace

int32_t rrt_error_code(const rrt_error* error) { return error->code(); }
const char* rrt_error_json(const rrt_error* error) { return error->json(); }
void rrt_error_free(rrt_error* error) { delete error; }

const void* rrt_bytes_data(const rrt_bytes* bytes) { return bytes->data(); }
size_t rrt_bytes_size(const rrt_bytes* bytes) { return bytes->size(); }
void rrt_bytes_free(rrt_bytes* bytes) { delete bytes; }

rrt_error* rrt_token_ids(const char* json, size_t size, const void* data, size_t data_size, rrt_bytes** ids) {
  return Guard([&] {
    auto array = TokenArrayFrom(Text(json, size));
    if (!array.ok()) return array.status();
    array->bytes = Bytes(data, data_size);
    auto narrow = TokenIds(*array);
    if (!narrow.ok()) return narrow.status();
    *ids = new rrt_bytes(*std::move(narrow));
    return absl::OkStatus();
  });
}

uint32_t rrt_token_check(uint32_t check, const uint32_t* tokens, size_t count) {
  return TokenCheckExtend(check, Bytes(tokens, count * sizeof(uint32_t)));
}

rrt_error* rrt_plan_new(const char* json, size_t size, int32_t ep_size, rrt_plan** plan) {
  return Guard([&]() -> absl::Status {
    auto described = trainer::DescribedPlanFromJson(Text(json, size));
    if (!described.ok()) return described.status();
    trainer::BufferLayout::Options options{.rows = described->plan.row_map.rows, .ep_size = ep_size};
    for (const trainer::OwnedLayer& layer : described->plan.layers) options.ordinals.push_back(layer.ordinal);
    auto layout = trainer::BufferLayout::Create(described->geometry, options);
    if (!layout.ok()) return layout.status();
    *plan = new rrt_plan{*std::move(described), *std::move(layout)};
    return absl::OkStatus();
  });
}

void rrt_plan_free(rrt_plan* plan) { delete plan; }

rrt_error* rrt_plan_json(const rrt_plan* plan, rrt_bytes** json) {
  return Guard([&] { return Give(PlanToText(plan->described), json); });
}

rrt_error* rrt_plan_buffer(const rrt_plan* plan, rrt_bytes** json) {
  return Guard([&] {
    const trainer::BufferLayout& layout = plan->layout;
    nlohmann::json layers = nlohmann::json::array();
    for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
      const LayerRouting& layer = layout.layer(slot);
      layers.push_back({{"layer", layer.layer_id},
                        {"offset", layout.slab_offset(slot)},
                        {"num_experts", layer.num_experts},
                        {"top_k", layer.top_k},
                        {"id_bytes", layer.id_bytes()}});
    }
    return Give(DumpJson({{"bytes", layout.bytes()}, {"rows", layout.rows()}, {"layers", std::move(layers)}}), json);
  });
}

rrt_error* rrt_plan_row_map(const rrt_plan* plan, int32_t* sequences, int32_t* rows, uint8_t* states, size_t count) {
  return Guard([&]() -> absl::Status {
    const std::vector<trainer::LocalRow> map = trainer::ExpandRowMap(plan->described.plan.row_map);
    if (count != map.size()) {
      return Invalid(Reason::kLength, "count", absl::StrCat(count, " is not the ", map.size(), " local rows"));
    }
    for (size_t i = 0; i < count; ++i) {
      const bool pad = map[i].state == trainer::RowState::kPad;
      sequences[i] = pad ? -1 : map[i].sequence;
      rows[i] = pad ? -1 : map[i].row;
      states[i] = static_cast<uint8_t>(map[i].state);
    }
    return absl::OkStatus();
  });
}

rrt_error* rrt_plan_filler(const rrt_plan* plan, int32_t slot, int64_t first, int64_t rows, void* ids,
                           size_t ids_size) {
  return Guard([&]() -> absl::Status {
    const trainer::BufferLayout& layout = plan->layout;
    if (absl::Status status = CheckSlot(layout, slot); !status.ok()) return status;
    for (const auto& [name, value] : {std::pair("first", first), std::pair("rows", rows)}) {
      if (value < 0 || value > trainer::kMaxLocalRows) {
        return Invalid(Reason::kField, name, absl::StrCat(value, " is not in 0 … ", trainer::kMaxLocalRows));
      }
    }
    if (ids_size != static_cast<size_t>(rows * layout.row_bytes(slot))) {
      return Invalid(Reason::kLength, "ids", absl::StrCat(ids_size, " bytes are not ", rows, " rows"));
    }
    const LayerRouting& layer = layout.layer(slot);
    const trainer::FillerShape shape{layer.num_experts, layer.top_k, layout.ep_size()};
    for (int64_t i = 0; i < rows * layer.top_k; ++i) {
      trainer::StoreId(
          static_cast<uint8_t*>(ids), layer.id_bytes(), i,
          FillerId(shape, first + i / layer.top_k, static_cast<int32_t>(i % layer.top_k), layout.ordinal(slot)));
    }
    return absl::OkStatus();
  });
}
