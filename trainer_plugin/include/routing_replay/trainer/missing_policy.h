// What happens to a sample that cannot be replayed.
#ifndef ROUTING_REPLAY_TRAINER_MISSING_POLICY_H_
#define ROUTING_REPLAY_TRAINER_MISSING_POLICY_H_

#include <cstdint>

namespace routing_replay::trainer {

// All ranks of a model replica must use the same. The numbers travel between them.
enum class MissingPolicy : uint8_t {
  kStrict = 0,  // The fetch, or the step on all ranks, fails: FAILED_PRECONDITION naming the sample and its status.
  kLive = 1,    // The whole sample is unrecorded: its rows take live routing. Counted.
  kDrop = 2,    // As kLive, and it is named: the caller leaves it out of the loss.
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_MISSING_POLICY_H_
