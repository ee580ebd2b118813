// Experts and the ranks of an expert-parallel group, and how many routed rows a plan sends to each of them. Independent
// of the pipeline: a group may have many ranks where the pipeline has one.
#ifndef ROUTING_REPLAY_TRAINER_EXPERT_PARALLEL_H_
#define ROUTING_REPLAY_TRAINER_EXPERT_PARALLEL_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// An expert by its place: the index-th local expert of rank r.
struct ExpertPlace {
  int32_t ep_rank = 0;
  int32_t index = 0;
  friend bool operator==(const ExpertPlace&, const ExpertPlace&) = default;
};

// The E experts of a layer in contiguous blocks of E / G over the G ranks of a group (Megatron-Core's
// BaseMoELayer.local_expert_indices). Immutable.
class ExpertParallel {
 public:
  // INVALID_ARGUMENT (kField, field "ep_size") unless 1 <= ep_size and it divides num_experts.
  static absl::StatusOr<ExpertParallel> Create(int32_t num_experts, int32_t ep_size);

  int32_t num_experts() const { return num_experts_; }
  int32_t ep_size() const { return ep_size_; }
  int32_t experts_per_rank() const { return num_experts_ / ep_size_; }

  // Global expert id to place and back; nothing for an expert or a place that there is not.
  std::optional<ExpertPlace> FindPlace(int32_t expert) const;
  std::optional<int32_t> FindExpert(const ExpertPlace& place) const;

 private:
  ExpertParallel(int32_t num_experts, int32_t ep_size) : num_experts_(num_experts), ep_size_(ep_size) {}

  int32_t num_experts_;
  int32_t ep_size_;
};

// Pairs of (row, slot) of one MoE layer by the rank of the expert-parallel group that they are sent to.
struct ExpertRankLoad {
  std::vector<int64_t> replayed;  // [ep_size], rows with a recorded route.
  std::vector<int64_t> filler;    // [ep_size], rows with filler ids.

  // Both, of the rank with the most.
  int64_t largest() const;
  // largest() over the mean of the ranks: 1 is balance, ep_size is all on one rank. 1 where there are no rows.
  double imbalance() const;
};

// What one trainer rank sends in MoE layer number `ordinal`: the loads of all ranks that share the group add up.
// `ids`: [rows][K] expert ids of the rows that are replayed, as in an index buffer: one byte each for E <= 256, else
// two, little-endian. `filler_rows`: how many rows get filler besides, with the ids that realign gives them (pads
// alone where rows without a route choose live, else those rows too).
// INVALID_ARGUMENT (kField, kLength, kIdRange) for an ordinal that is none, an ep_size that does not divide E, ids that
// are not whole rows, an id that is no expert (with row and layer), and a number of rows outside 0 … kMaxLocalRows.
absl::StatusOr<ExpertRankLoad> LoadOfRows(const Geometry& geometry, int32_t ordinal, int32_t ep_size,
                                          absl::Span<const uint8_t> ids, int64_t filler_rows);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_EXPERT_PARALLEL_H_
