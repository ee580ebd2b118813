// Realign for a device: what it needs in one block.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/realign.h"
#include "trainer_plugin/capi/objects.h"
#include "trainer_plugin/layout/multiple.h"

using namespace routing_replay;           // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::capi;     // NOLINT(build/namespaces)
using namespace routing_replay::trainer;  // NOLINT(build/namespaces)

struct rrt_staged final {
  const rrt_plan& plan;
  const StagedRows& staged;
  RealignPlan realign;
  PackedPlanSize size;

  // The staged rows are aligned as whatever allocates device memory aligns.
  int64_t staging_offset() const { return RoundUp(size.bytes, kBufferAlignment); }
  int64_t bytes() const { return staging_offset() + static_cast<int64_t>(staged.staging.size()); }
};

rrt_error* rrt_staged_new(const rrt_plan* plan, const rrt_fetch* fetch, rrt_staged** staged) {
  return Guard([&]() -> absl::Status {
    auto realign = PlanRealignOf(*plan, *fetch);
    if (!realign.ok()) return realign.status();
    const PackedPlanSize size = SizeOfPackedPlan(plan->layout, *realign);
    *staged = new rrt_staged{*plan, fetch->staged, *std::move(realign), size};
    return absl::OkStatus();
  });
}

void rrt_staged_free(rrt_staged* staged) { delete staged; }

void rrt_staged_get_shape(const rrt_staged* staged, rrt_staged_shape* shape) {
  const RealignPlan& realign = staged->realign;
  *shape = {.bytes = staged->bytes(),
            .staging_offset = staged->staging_offset(),
            .states_offset = staged->size.bytes - staged->plan.layout.rows(),
            .units = staged->size.units,
            .replayed_rows = realign.replayed_rows,
            .unrecorded_rows = realign.unrecorded_rows,
            .pad_rows = realign.pad_rows};
}

rrt_error* rrt_staged_write(const rrt_staged* staged, void* block, size_t size) {
  return Guard([&]() -> absl::Status {
    const int64_t bytes = staged->bytes(), offset = staged->staging_offset();
    if (size < static_cast<size_t>(bytes)) {
      return Invalid(Reason::kLength, "block", absl::StrCat("has ", size, " bytes, needs ", bytes));
    }
    auto* out = static_cast<uint8_t*>(block);
    absl::Status status = PackPlan(staged->plan.layout, staged->realign, {out, static_cast<size_t>(offset)});
    const std::vector<uint8_t>& rows = staged->staged.staging;
    if (status.ok() && !rows.empty()) std::memcpy(out + offset, rows.data(), rows.size());
    return status;
  });
}

void rrt_staged_realign(const void* block, int64_t staging_offset, void* indices, uint8_t* states) {
  NoThrow([&] {
    const auto* packed = static_cast<const uint8_t*>(block);
    RealignPacked(packed, packed + staging_offset, static_cast<uint8_t*>(indices), reinterpret_cast<RowState*>(states));
  });
}
