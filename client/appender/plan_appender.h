// What this client's own parts ask of an appender.
#ifndef CLIENT_APPENDER_PLAN_APPENDER_H_
#define CLIENT_APPENDER_PLAN_APPENDER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/appender/append_plan.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

// Queues plans. Every Appender that a Run of this client makes is one. Thread-safe.
class PlanAppender : public Appender {
 public:
  struct Queued {
    uint64_t sequence = 0;
    bool dropped = false;  // Only a mark of its rows was taken.
  };
  // Told of the outcome of one append before on_outcome is, from a thread of the appender, which it must not call.
  using Note = std::function<void(const AppendOutcome&)>;

  static PlanAppender& Of(Appender& appender) { return static_cast<PlanAppender&>(appender); }

  virtual const Geometry& geometry() const = 0;
  // As the run stores rows, and its server takes them.
  virtual BlockOptions blocks() const = 0;
  // `tensor` null: no recorded rows, `rows` unrecorded ones. An error names the sample.
  absl::StatusOr<AppendPlan> Plan(const AppendOptions& options, const TensorDescription* tensor,
                                  absl::Span<const uint8_t> payload, int64_t rows = 0) const;
  // Takes the plan once there is room; nothing where it would have to wait and must not, and the plan is as it was.
  // Errors as of Append.
  virtual absl::StatusOr<std::optional<Queued>> Enqueue(AppendPlan& plan, Note note, bool may_wait) = 0;
  // Waits until no append up to this one, of the sample that it is of, is open. DEADLINE_EXCEEDED; CANCELLED if the
  // appender was closed before.
  virtual absl::Status SettleUpTo(uint64_t sequence, std::chrono::milliseconds timeout) = 0;
  // In which every append has its outcome.
  std::chrono::milliseconds settle_time() const { return settle_time_; }

  absl::Status Append(const AppendOptions& options, const TensorDescription& tensor,
                      absl::Span<const uint8_t> payload) final;
  absl::Status AppendUnrecorded(const AppendOptions& options, int64_t rows) final;
  absl::Status AppendMany(absl::Span<const NewAppend> appends, QueuedAppends& queued, bool may_wait) final;

 protected:
  explicit PlanAppender(const AppenderOptions& options)
      : encode_blocks_(options.encode_blocks), settle_time_(options.append_timeout + std::chrono::seconds(5)) {}

 private:
  // Nothing where it would have to wait and must not.
  absl::StatusOr<std::optional<Queued>> Add(absl::StatusOr<AppendPlan> plan, bool may_wait);

  const bool encode_blocks_;
  const std::chrono::milliseconds settle_time_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_PLAN_APPENDER_H_
