// What a release does with a sample.
#ifndef ROUTING_REPLAY_WIRE_RELEASE_MODE_H_
#define ROUTING_REPLAY_WIRE_RELEASE_MODE_H_

#include <cstdint>

namespace routing_replay {

// Values are those of the wire (ReleaseMode in common.proto).
enum class ReleaseMode : uint8_t {
  kNow = 1,  // Gives it back.
  // A sealed sample stays as it is, for its time to live, and awaits a checkpoint; others, which no checkpoint takes,
  // are given back. To truncate or restart a sample takes this back.
  kAfterCheckpoint = 2,
  kCheckpointed = 3,  // Gives it back if it awaits a checkpoint: one holds it now.
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_RELEASE_MODE_H_
