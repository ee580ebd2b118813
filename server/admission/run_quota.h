// What one run may take of the server, so that it leaves something to the others.
#ifndef SERVER_ADMISSION_RUN_QUOTA_H_
#define SERVER_ADMISSION_RUN_QUOTA_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"

namespace routing_replay {

inline constexpr char kRunBudget[] = "run-budget";
inline constexpr char kRunStreams[] = "run-streams";

// Thread-safe.
class RunQuota {
 public:
  struct Limits {
    int64_t bytes = 0;    // Stored of a run; 0: no limit.
    int64_t streams = 0;  // Append and Read calls of a run at a time; 0: no limit.
  };
  // The bytes that are stored of each run.
  using Stored = std::function<absl::StatusOr<std::map<std::string, int64_t>>()>;

  // `clock` and what `stored` needs must outlive this. `stored` is asked once a second at most, and only where the
  // bytes are limited.
  RunQuota(const Limits& limits, const Clock& clock, Stored stored)
      : limits_(limits), clock_(clock), stored_(std::move(stored)) {}

  // Before `bytes` are stored for the run: RESOURCE_EXHAUSTED (kOverBudget, field run-budget, retry_after_ms) if they
  // would be too many. What was admitted counts until what is stored is asked for again, so the limit is kept about as
  // well as a second's appends.
  absl::Status Admit(absl::string_view run, int64_t bytes);

  // A stream of the run, until it is destroyed; before the quota is.
  class Stream {
   public:
    Stream(RunQuota& quota, std::string run) : quota_(quota), run_(std::move(run)) {}
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream() { quota_.Close(run_); }

   private:
    RunQuota& quota_;
    const std::string run_;
  };
  // RESOURCE_EXHAUSTED (kOverBudget, field run-streams, retry_after_ms).
  absl::StatusOr<std::unique_ptr<Stream>> Open(absl::string_view run);

 private:
  void Close(const std::string& run);
  void LookAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const Clock& clock_;
  const Stored stored_;
  Mutex mutex_;
  Clock::Time look_after_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int64_t, std::less<>> bytes_ ABSL_GUARDED_BY(mutex_);  // Stored then, and admitted since.
  std::map<std::string, int64_t, std::less<>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay

#endif  // SERVER_ADMISSION_RUN_QUOTA_H_
