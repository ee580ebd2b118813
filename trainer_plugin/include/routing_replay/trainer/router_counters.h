// What a router call counts. Plain data without further headers: kernels add to one in device memory.
#ifndef ROUTING_REPLAY_TRAINER_ROUTER_COUNTERS_H_
#define ROUTING_REPLAY_TRAINER_ROUTER_COUNTERS_H_

#include <cstdint>

namespace routing_replay::trainer {

// Added to by every call, never reset.
struct RouterCounters {
  int64_t replayed_rows = 0;
  int64_t live_rows = 0;
  int64_t pad_rows = 0;
  // Ids >= E. They are clamped to E - 1, as a kernel cannot stop; anything but 0 means a broken buffer.
  int64_t clamped_ids = 0;
  // Replayed ids whose probability came out as 0: dispatchers that derive ids from probabilities lose that expert.
  int64_t zero_probabilities = 0;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROUTER_COUNTERS_H_
