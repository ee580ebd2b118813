// A trajectory with its I/O: makes appends from turns, and asks the server when necessary.
#ifndef CLIENT_TRAJECTORY_TRAJECTORY_WRITER_H_
#define CLIENT_TRAJECTORY_TRAJECTORY_WRITER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/appender/append_plan.h"
#include "client/call/call_order.h"
#include "client/trajectory/trajectory.h"
#include "client/trajectory/turn_plan.h"
#include "proto/wire/mutex.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// The result of a turn.
struct TurnResult {
  TurnDecision decision;
  std::vector<RowRange> appended;  // Absolute rows that were queued, one range per append.
  int64_t unrecorded_rows = 0;     // Queued rows without a route.
  int64_t dropped_rows = 0;        // Rows that became unrecorded because the queue had no room for them.
  int64_t truncated_rows = 0;      // Rows removed because of this turn.
};

// Thread-safe; turns are processed one after the other. Waits end with the call of their thread
// (client/call/cancellation.h).
class TrajectoryWriter {
 public:
  using Place = std::shared_ptr<const CallOrder::Place>;
  struct Options {
    Trajectory::Options trajectory;
    std::optional<int64_t> group;
  };
  struct State {
    int64_t num_tokens = 0, rows = 0;
    bool sealed = false;
  };

  // `appender` must be one of `run`. INVALID_ARGUMENT (kField "sample") if the sample's id is malformed.
  static absl::StatusOr<std::unique_ptr<TrajectoryWriter>> New(std::shared_ptr<Run> run,
                                                               std::shared_ptr<Appender> appender, Options options);

  // Queues the new rows of a turn, as PlanTurn decides.
  // - `rows`: null if the turn has no rows. `engine`: the engine's name. `place`: the turn's place in order(); null:
  //   the next place.
  // - Waits for room in the queue, as the appender does. Also waits for the server if rows must be removed, or if an
  //   append failed and the sample's state must be asked for.
  // - After an error rows may have been removed, and some of the new rows queued. The next turn finds out which.
  absl::StatusOr<TurnResult> Add(const Turn& turn, const TurnRows* rows, absl::string_view engine = "",
                                 Place place = nullptr);
  // Returns a writer of a new sample that begins with the rows of this one that are acknowledged. Waits for the others
  // for at most `wait`.
  absl::StatusOr<std::unique_ptr<TrajectoryWriter>> Fork(const std::string& sample, std::chrono::milliseconds wait,
                                                         Place place = nullptr);
  // Returns the first row that the engine must return for a request with this context.
  int64_t NextRow(absl::Span<const uint32_t> tokens);
  State state();
  const std::string& sample() const { return sample_; }
  // The order of turns and forks.
  CallOrder& order() { return order_; }

 private:
  class Mailbox;

  TrajectoryWriter(std::shared_ptr<Run> run, std::shared_ptr<Appender> appender, AppendOptions common,
                   Trajectory trajectory);

  PlanAppender& appender() const { return PlanAppender::Of(*appender_); }
  absl::StatusOr<TurnResult> Do(const Turn& turn, const TurnRows* rows, const AppendOptions& common);
  absl::StatusOr<TurnPlan> Plan(const Turn& turn, const TurnRows* rows, const AppendOptions& common);
  // Waits for the outcomes of all queued appends. Returns true if one of them failed.
  absl::StatusOr<bool> Settle();
  absl::Status Ask();
  // Truncates the sample as decided. Returns OK even if it is unknown whether the truncation happened, because the next
  // attempt then asks the server; only the last attempt returns the error.
  absl::Status Truncate(const TurnDecision& decision, int attempt);
  absl::StatusOr<TurnResult> Queue(TurnPlan plan);
  // Passes the outcomes that have arrived to the trajectory. Returns true if an append failed.
  bool Drain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Run> run_;
  const std::shared_ptr<Appender> appender_;
  const AppendOptions common_;
  const std::string sample_;
  const std::shared_ptr<Mailbox> mailbox_;

  CallOrder order_;

  Mutex mutex_;
  Trajectory trajectory_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_sequence_ ABSL_GUARDED_BY(mutex_) = 0;  // Sequence number of the last queued append.
};

}  // namespace routing_replay::client

#endif  // CLIENT_TRAJECTORY_TRAJECTORY_WRITER_H_
