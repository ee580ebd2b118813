#include "routing_replay/trainer/context_parallel.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/rows_check.h"

namespace routing_replay::trainer {

absl::Status CheckHierarchicalCp(absl::Span<const int32_t> sizes, int32_t cp_size) {
  int64_t product = 1;
  for (const int32_t size : sizes) {
    if (absl::Status status = CheckSize("hierarchical_cp_sizes", size); !status.ok()) return status;
    product *= size;
    if (product > cp_size) break;
  }
  if (product == cp_size) return absl::OkStatus();
  return Invalid(Reason::kShape, "hierarchical_cp_sizes",
                 absl::StrCat(absl::StrJoin(sizes, " x "), " is not cp_size = ", cp_size));
}

absl::StatusOr<CpRank> LocalCpRank(int32_t dp_cp_rank, int32_t dp_cp_size, int32_t local_cp_size) {
  if (absl::Status status = CheckSize("dp_cp_size", dp_cp_size); !status.ok()) return status;
  if (absl::Status status = CheckSize("local_cp_size", local_cp_size); !status.ok()) return status;
  if (dp_cp_rank < 0 || dp_cp_rank >= dp_cp_size) {
    return Invalid("rank.dp_cp", absl::StrCat(dp_cp_rank, " is not in [0, ", dp_cp_size, ")"));
  }
  if ((local_cp_size & (local_cp_size - 1)) != 0 || dp_cp_size % local_cp_size != 0) {
    return Invalid(Reason::kShape, "local_cp_size",
                   absl::StrCat(local_cp_size, " is not a power of two that divides the ", dp_cp_size,
                                " ranks of the DP x CP group"));
  }
  return CpRank{.size = local_cp_size, .rank = dp_cp_rank % local_cp_size};
}

}  // namespace routing_replay::trainer
