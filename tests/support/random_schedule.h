// Random calls of a pipeline schedule for property tests.
#ifndef TESTS_SUPPORT_RANDOM_SCHEDULE_H_
#define TESTS_SUPPORT_RANDOM_SCHEDULE_H_

#include <cstdint>
#include <random>

#include "tests/reference/schedule.h"

namespace routing_replay::testing {

// Returns a random schedule, which may be one that Megatron rejects.
inline trainer::PipelineSchedule RandomSchedule(std::mt19937& random) {
  const auto pick = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random);
  };
  trainer::PipelineSchedule schedule{.pipeline_size = pick(1, 5), .micro_batches = pick(1, 14)};
  schedule.pp_rank = pick(0, schedule.pipeline_size - 1);
  if (pick(0, 1)) {
    schedule.virtual_stages = pick(1, 4);
    if (pick(0, 1)) schedule.group_size = pick(1, 8);
  }
  schedule.forward_only = pick(0, 4) == 0;
  schedule.recompute = pick(0, 1);
  schedule.overlap_expert_communication = pick(0, 3) == 0;
  return schedule;
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_RANDOM_SCHEDULE_H_
