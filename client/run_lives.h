// Which making of a run a client means: a server that lost a run may have made it again under the same name.
#ifndef CLIENT_RUN_LIVES_H_
#define CLIENT_RUN_LIVES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"

namespace routing_replay::client {

// The lives (OpenRunResponse.life) of a run that this client opened, one per server that it is on. A life of 0 is not
// known, and fits any. Thread-safe.
class RunLives {
 public:
  explicit RunLives(size_t servers) : lives_(servers) {}

  // The run was opened on a server: what it was there before is of no account any more.
  void Open(size_t server, uint64_t life);
  // An answer says that it is of this life. DATA_LOSS if the run was made again since it was opened; where no life was
  // known it is this one from now on.
  absl::Status Check(size_t server, absl::string_view run, uint64_t life);
  // One number for all servers, another one as soon as one of them made the run again. 0 while one is not known.
  uint64_t whole() const;

 private:
  mutable Mutex mutex_;
  std::vector<uint64_t> lives_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::client

#endif  // CLIENT_RUN_LIVES_H_
