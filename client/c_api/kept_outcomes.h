// Outcomes of an appender, until somebody takes them.
#ifndef CLIENT_C_API_KEPT_OUTCOMES_H_
#define CLIENT_C_API_KEPT_OUTCOMES_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/call/fork_part.h"
#include "proto/wire/clock.h"
#include "proto/wire/mutex.h"
#include "routing_replay/client.h"

namespace routing_replay::c_api {

// Thread-safe. The child of a fork has none.
class KeptOutcomes final : private client::ForkPart {
 public:
  // As AppenderOptions::on_outcomes.
  void Put(std::vector<AppendOutcome> outcomes, std::function<void()> seen);
  // What was taken before has been seen. Waits for more: none once it is closed and all were taken. DEADLINE_EXCEEDED,
  // CANCELLED.
  absl::StatusOr<std::vector<AppendOutcome>> Take(Clock::Time deadline);
  // No more come.
  void Close();
  // Nobody takes any more: what is here, and what comes, has been seen.
  void Dismiss();

 private:
  using Seen = std::vector<std::function<void()>>;

  void BeginAnew() override;

  Mutex mutex_;
  CondVar changed_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool dismissed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<AppendOutcome> outcomes_ ABSL_GUARDED_BY(mutex_);
  Seen waiting_ ABSL_GUARDED_BY(mutex_);  // Of outcomes_ …
  Seen taken_ ABSL_GUARDED_BY(mutex_);    // … and of those that were given last.
};

}  // namespace routing_replay::c_api

#endif  // CLIENT_C_API_KEPT_OUTCOMES_H_
