// Whether what is gone from a run was released, or lost with it.
#ifndef CLIENT_CHECKPOINT_SAME_RUN_H_
#define CLIENT_CHECKPOINT_SAME_RUN_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// To be asked once all samples of a list were looked at: those that were not there any more were released meanwhile if
// this is OK. The error of Run::List otherwise, as where a server lost the run.
inline absl::Status CheckSameRun(Run& run, Producer producer) {
  constexpr std::pair<int64_t, int64_t> kNone{0, 0};
  return run.List(kNone, producer).status();
}

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_SAME_RUN_H_
