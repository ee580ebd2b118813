// C functions for plans and for diagnosis.
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

namespace {

nlohmann::ordered_json ToJson(const rrt_plan& plan) {
  nlohmann::ordered_json said = PlanToJson(plan.described);
  for (int32_t slot = 0; slot < plan.layout.num_layers(); ++slot) {
    const LayerRouting& layer = plan.layout.layer(slot);
    said["layers"][slot].update({{"offset", plan.layout.slab_offset(slot)},
                                 {"num_experts", layer.num_experts},
                                 {"top_k", layer.top_k},
                                 {"id_bytes", layer.id_bytes()}});
  }
  said["buffer_bytes"] = plan.layout.bytes();
  said["geometry"] = GeometryToJson(plan.described.geometry);
  said["geometry_fingerprint"] = plan.described.geometry.fingerprint();
  return said;
}

struct Ids {
  std::vector<RouteIds> recorded;  // Per sequence of the plan.
  RouteIds seen;
};

absl::StatusOr<Ids> IdsFrom(const rrt_plan& plan, const rrt_route_ids& given) {
  const DescribedPlan& described = plan.described;
  const Geometry& geometry = described.geometry;
  const int32_t top_k = geometry.max_top_k();
  Ids ids;
  size_t at = 0;
  for (size_t i = 0; i < given.sequences; ++i) {
    const int64_t rows = given.rows[i];
    const std::optional<int64_t> size = geometry.array_ids(rows);
    if (!size || rows > kMaxStreamRows || *size > static_cast<int64_t>(given.recorded_count - at)) {
      return Invalid(Reason::kShape, "recorded", absl::StrCat("must have ", rows, " rows of sequence ", i));
    }
    ids.recorded.push_back(
        {rows, geometry.num_moe_layers(), top_k, {given.recorded + at, given.recorded + at + *size}});
    at += *size;
  }
  if (at != given.recorded_count) {
    return Invalid(Reason::kShape, "recorded", absl::StrCat(given.recorded_count, " ids, expected ", at));
  }
  if (!described.pieces.empty()) {
    RR_ASSIGN_OR_RETURN(auto joined, JoinPieces(geometry, described.layout, described.pieces, ids.recorded));
    ids.recorded = std::move(joined);
  }
  ids.seen = {described.plan.row_map.rows,
              static_cast<int32_t>(described.plan.layers.size()),
              top_k,
              {given.seen, given.seen + given.seen_count}};
  return ids;
}

}  // namespace

rr_error* rrt_plan_new(rr_text json, int32_t ep_size, rrt_plan** plan, const rr_bytes** said) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(auto described, DescribedPlanFromJson(View(json)));
    BufferLayout::Options options{.rows = described.plan.row_map.rows, .ep_size = ep_size};
    for (const OwnedLayer& layer : described.plan.layers) options.ordinals.push_back(layer.ordinal);
    RR_ASSIGN_OR_RETURN(auto layout, BufferLayout::Create(described.geometry, options));
    auto made = std::make_unique<rrt_plan>(std::move(described), std::move(layout));
    *said = NewBytes(ToJson(*made).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    *plan = made.release();
    return absl::OkStatus();
  });
}

rr_error* rrt_plan_row_map(const rrt_plan* plan, int32_t* sequences, int32_t* rows, uint8_t* states, size_t count) {
  return Guard([&]() -> absl::Status {
    const std::vector<LocalRow>& map = plan->row_map;
    if (count != map.size()) {
      return Invalid(Reason::kLength, "count",
                     absl::StrCat("must be the number of local rows, ", map.size(), ", got ", count));
    }
    for (size_t i = 0; i < count; ++i) {
      const bool pad = map[i].state == RowState::kPad;
      sequences[i] = pad ? -1 : map[i].sequence;
      rows[i] = pad ? -1 : map[i].row;
      states[i] = static_cast<uint8_t>(map[i].state);
    }
    return absl::OkStatus();
  });
}

rr_error* rrt_judge_alignment(const rrt_plan* plan, const rrt_route_ids* given, const rr_bytes** out) {
  return Guard([&]() -> absl::Status {
    RR_ASSIGN_OR_RETURN(const auto ids, IdsFrom(*plan, *given));
    RR_ASSIGN_OR_RETURN(const auto judged, JudgeIds(plan->described, ids.recorded, ids.seen, false));
    *out = NewBytes(judged.dump());
    return absl::OkStatus();
  });
}
