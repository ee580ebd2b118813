// Which weight versions a server took and gave, and how far readers are behind.
#ifndef SERVER_OPERATIONS_NEWEST_VERSIONS_H_
#define SERVER_OPERATIONS_NEWEST_VERSIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/sample_id.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay::server {

// Thread-safe. kUnknownWeightVersion changes nothing.
class NewestVersions {
 public:
  // A run that nobody has read for so long has no reader that could be behind.
  static constexpr std::chrono::minutes kReaderIsGone{30};
  // Where others are put, a newest version that was not put for so long is the newest no more: a training that went
  // back to a checkpoint, or began anew, at another server.
  static constexpr std::chrono::minutes kNewestIsOver{30};
  // Runs that are remembered; of more, those that were put or read last.
  static constexpr size_t kMostRuns = 1000;

  // `clock` outlives it.
  explicit NewestVersions(const Clock& clock) : clock_(clock) {}

  // Rows of this version were put, or a sample was read whose newest version it is.
  void Put(absl::string_view run, Producer producer, int64_t version);
  void Get(absl::string_view run, Producer producer, int64_t version);
  // The run is gone, or went back to a checkpoint: what comes under its name begins anew.
  void Drop(absl::string_view run);

  // The highest since the start, of all runs; kUnknownWeightVersion: none.
  int64_t put() const;
  int64_t get() const;
  // Of each run that has a reader: the newest version that was put, minus that of what was read last. The largest of
  // these, 0 at least, also where no run has a reader. Rows of trainers do not count: their versions are others.
  int64_t lag() const;

 private:
  struct Run {
    int64_t put, get;
    Clock::Time newest_put, read, used;
  };
  // The run's entry, used now; another one makes room for it.
  Run& Use(absl::string_view run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  mutable Mutex mutex_;
  int64_t put_ ABSL_GUARDED_BY(mutex_) = kUnknownWeightVersion;
  int64_t get_ ABSL_GUARDED_BY(mutex_) = kUnknownWeightVersion;
  std::map<std::string, Run, std::less<>> runs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_NEWEST_VERSIONS_H_
