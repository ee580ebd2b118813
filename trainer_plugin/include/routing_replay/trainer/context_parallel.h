// Context-parallel groups that are not simply one group of cp_size ranks.
#ifndef ROUTING_REPLAY_TRAINER_CONTEXT_PARALLEL_H_
#define ROUTING_REPLAY_TRAINER_CONTEXT_PARALLEL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay::trainer {

// Hierarchical CP (Megatron hierarchical_context_parallel_sizes, cp_comm_type a2a+p2p): tokens are owned as in one
// group of cp_size ranks; the sizes of the levels only have to make that. INVALID_ARGUMENT (kShape) if they do not.
absl::Status CheckHierarchicalCp(absl::Span<const int32_t> sizes, int32_t cp_size);

struct CpRank {
  int32_t size = 1;
  int32_t rank = 0;
  friend bool operator==(const CpRank&, const CpRank&) = default;
};

// Dynamic CP (verl local_cp_size) and hybrid CP (Megatron hybrid_context_parallel, create_hybrid_dp_cp_groups): one
// micro-batch is cut over `local_cp_size` neighbours of the `dp_cp_size` ranks of the DP x CP group. The place of rank
// `dp_cp_rank` among them. INVALID_ARGUMENT (kField) for ranks outside, (kShape) unless local_cp_size is a power of two
// that divides dp_cp_size.
absl::StatusOr<CpRank> LocalCpRank(int32_t dp_cp_rank, int32_t dp_cp_size, int32_t local_cp_size);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_CONTEXT_PARALLEL_H_
