// Diagnosis: what a rank's routers were given, or chose, beside what was recorded.
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/json/json.h"
#include "trainer_plugin/capi/objects.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

namespace {

struct Ids {
  std::vector<RouteIds> recorded;  // Per sequence of the plan.
  RouteIds seen;
};

absl::StatusOr<Ids> IdsFrom(const rrt_plan& plan, const rrt_route_ids& given) {
  const DescribedPlan& described = plan.described;
  const Geometry& geometry = described.geometry;
  const int32_t top_k = geometry.max_top_k();
  if (given.sequences != described.sequences()) {
    return Invalid(Reason::kShape, "recorded",
                   absl::StrCat("of ", given.sequences, " sequences, the plan has ", described.sequences()));
  }
  Ids ids;
  size_t at = 0;
  for (size_t i = 0; i < given.sequences; ++i) {
    const int64_t rows = given.rows[i];
    const std::optional<int64_t> size = geometry.array_ids(rows);
    if (!size || rows > kMaxStreamRows || *size > static_cast<int64_t>(given.recorded_count - at)) {
      return Invalid(Reason::kShape, "recorded", absl::StrCat("has no ", rows, " rows of sequence ", i));
    }
    ids.recorded.push_back(
        {rows, geometry.num_moe_layers(), top_k, {given.recorded + at, given.recorded + at + *size}});
    at += *size;
  }
  if (at != given.recorded_count) {
    return Invalid(Reason::kShape, "recorded", absl::StrCat(given.recorded_count, " ids, the rows have ", at));
  }
  if (!described.pieces.empty()) {
    auto joined = JoinPieces(geometry, described.layout, described.pieces, ids.recorded);
    if (!joined.ok()) return joined.status();
    ids.recorded = *std::move(joined);
  }
  ids.seen = {described.plan.row_map.rows,
              static_cast<int32_t>(described.plan.layers.size()),
              top_k,
              {given.seen, given.seen + given.seen_count}};
  return ids;
}

}  // namespace

rrt_error* rrt_plan_geometry(const rrt_plan* plan, rrt_bytes** json) {
  return Guard([&] { return Give(DumpJson(GeometryToJson(plan->described.geometry)), json); });
}

rrt_error* rrt_diagnose(const char* json, size_t size, rrt_bytes** out) {
  return Guard([&]() -> absl::Status {
    const auto found = DiagnoseFromJson(Text(json, size));
    if (!found.ok()) return found.status();
    return Give(found->dump(), out);
  });
}

rrt_error* rrt_diagnose_ids(const rrt_plan* plan, const rrt_route_ids* given, rrt_bytes** out) {
  return Guard([&]() -> absl::Status {
    const auto ids = IdsFrom(*plan, *given);
    if (!ids.ok()) return ids.status();
    const auto found = DiagnoseIds(plan->described, ids->recorded, ids->seen);
    if (!found.ok()) return found.status();
    return Give(found->dump(), out);
  });
}

rrt_error* rrt_judge_alignment(const rrt_plan* plan, const rrt_route_ids* given, rrt_bytes** out) {
  return Guard([&]() -> absl::Status {
    const auto ids = IdsFrom(*plan, *given);
    if (!ids.ok()) return ids.status();
    const auto judged = JudgeIds(plan->described, ids->recorded, ids->seen);
    if (!judged.ok()) return judged.status();
    return Give(judged->dump(), out);
  });
}
