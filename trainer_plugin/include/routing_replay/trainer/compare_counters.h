// What a comparison of choices counts. Plain data without further headers: kernels add to one in device memory.
#ifndef ROUTING_REPLAY_TRAINER_COMPARE_COUNTERS_H_
#define ROUTING_REPLAY_TRAINER_COMPARE_COUNTERS_H_

#include <cstdint>

namespace routing_replay::trainer {

// Of one layer. Added to by every call, never reset.
struct CompareCounters {
  int64_t rows = 0;            // Compared.
  int64_t different_rows = 0;  // Whose sets are not equal.
  int64_t disjoint_rows = 0;   // Whose sets have no expert in common: what rows shifted by one look like.
  int64_t common_ids = 0;      // Σ of the experts in common; rows · K where all are equal.
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_COMPARE_COUNTERS_H_
