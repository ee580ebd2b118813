// From what a caller appends to the messages that carry it.
#ifndef CLIENT_APPENDER_APPEND_PLAN_H_
#define CLIENT_APPENDER_APPEND_PLAN_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/payload/tensor_payload.h"
#include "proto/wire/payload/tensor_view.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

// How a run stores rows, and what its server takes.
struct BlockOptions {
  int32_t block_rows = kDefaultBlockRows;
  Codec codec = Codec::kRaw;
  int64_t max_message_bytes = 0;  // Of an AppendRequest.
  int64_t max_payload_bytes = 0;  // Of one append, after decompression.
};

// One message to send. `header.append_id` is left to the sender.
struct AppendPiece {
  AppendHeader header;
  std::vector<absl::Span<const uint8_t>> payload;  // Its bytes, in order …
  std::shared_ptr<const void> owner;               // … kept alive by this.
  int64_t payload_bytes = 0;
};

// One append: pieces whose rows follow each other, each of one weight version. Only the last one seals, only the first
// one opens from a prefix.
struct AppendPlan {
  std::vector<AppendPiece> pieces;  // At least one.
  int64_t bytes = 0;                // Memory that it holds, for the queue's bound.
  // Only to be counted: it came in a wider dtype than E needs; rows of the last token that were left out.
  bool narrowed = false;
  int64_t surplus_rows = 0;
  // Told of the outcome before AppenderOptions::on_outcome is, from a thread of the appender, which it must not call.
  // Null: nobody.
  std::function<void(const AppendOutcome&)> note;
};

// By a nonce with this upper half the server knows an attempt, whose number is the lower half (append.proto).
inline constexpr uint64_t kAttemptNonce = uint64_t{0x41545054} << 32;
constexpr std::optional<int64_t> AttemptOf(uint64_t restart_nonce) {
  if (restart_nonce >> 32 != kAttemptNonce >> 32) return std::nullopt;
  return static_cast<uint32_t>(restart_nonce);
}

// Payload bytes of a message above which encoded blocks go into the next one. gRPC moves messages of 1 to 4 MiB best.
inline constexpr int64_t kPieceBytes = int64_t{2} << 20;

// All of these: INVALID_ARGUMENT naming the field of append.proto (by the rules of ParseAppendRequest) if the options
// are bad, or if token_ids has neither one id per row nor one per position from 0 on.

// What the engine gave, decoded, checked and tiled here (DecodeTensor, and its errors), as encoded blocks.
absl::StatusOr<AppendPlan> PlanRows(const AppendOptions& options, const TensorDescription& tensor,
                                    absl::Span<const uint8_t> payload, const Geometry& geometry,
                                    const BlockOptions& blocks);
// Decoded rows, as encoded blocks: cut between windows of `block_rows` rows wherever a piece would pass `piece_bytes`.
absl::StatusOr<AppendPlan> PlanBlocks(const AppendOptions& options, DecodedRows rows, int32_t block_rows,
                                      int64_t piece_bytes = kPieceBytes);
// The same, in pieces that the run's server takes.
absl::StatusOr<AppendPlan> PlanBlocks(const AppendOptions& options, DecodedRows rows, const BlockOptions& blocks);
// Where the blocks of rows with options.weights must be cut: DecodeOptions.cuts.
absl::StatusOr<std::vector<int64_t>> WeightCuts(absl::Span<const WeightSpan> weights);
// What of the weights is that of these rows.
std::vector<WeightSpan> ClipWeights(absl::Span<const WeightSpan> weights, RowRange rows);
// InvalidArgument (FIELD, "append.weights") unless these are ascending and disjoint ranges of `rows`, none empty.
absl::Status CheckWeightRows(absl::Span<const WeightSpan> weights, RowRange rows);
// The ids that are meant of what the engine gave: the options' take and ids_and_weights.
absl::StatusOr<TensorView> OpenSlots(const TensorDescription& tensor, absl::Span<const uint8_t> payload,
                                     const std::optional<RowRange>& take, bool ids_and_weights,
                                     int64_t max_payload_bytes);
// `rows` rows that are all unrecorded; options.unrecorded must be empty or say so. options.weights is not used.
absl::StatusOr<AppendPlan> PlanUnrecorded(const AppendOptions& options, int64_t rows);

// The same append with all of its rows unrecorded, in one piece per weight version that has no payload: what is left of
// an append whose bytes cannot be kept. Rows that follow leave no gap, and readers learn at once that these were not
// recorded.
AppendPlan DropPayload(const AppendPlan& plan);

// The counters of AppenderMetrics, but rejected_by_reason.
inline constexpr std::pair<const char*, int64_t AppenderMetrics::*> kAppenderCounters[] = {
    {"appends", &AppenderMetrics::appends},
    {"acknowledged", &AppenderMetrics::acknowledged},
    {"failed", &AppenderMetrics::failed},
    {"rows", &AppenderMetrics::rows},
    {"trimmed_rows", &AppenderMetrics::trimmed_rows},
    {"conflicting_rows", &AppenderMetrics::conflicting_rows},
    {"unrecorded_rows", &AppenderMetrics::unrecorded_rows},
    {"payload_bytes", &AppenderMetrics::payload_bytes},
    {"resent_bytes", &AppenderMetrics::resent_bytes},
    {"reconnects", &AppenderMetrics::reconnects},
    {"credit_rejections", &AppenderMetrics::credit_rejections},
    {"dropped_appends", &AppenderMetrics::dropped_appends},
    {"dropped_rows", &AppenderMetrics::dropped_rows},
    {"rejected_appends", &AppenderMetrics::rejected_appends},
    {"narrowed_appends", &AppenderMetrics::narrowed_appends},
    {"unrecorded_appends", &AppenderMetrics::unrecorded_appends},
    {"surplus_rows", &AppenderMetrics::surplus_rows},
    {"stale_appends", &AppenderMetrics::stale_appends},
    {"queued_bytes", &AppenderMetrics::queued_bytes},
    {"open_appends", &AppenderMetrics::open_appends},
};

// Adds what an ack says of one piece to the outcome of its append.
void AddAck(const AppendAck& ack, AppendOutcome& outcome);

// Queues plans. Every Appender that a Run of this client makes is one. Thread-safe.
class PlanAppender : public Appender {
 public:
  struct Queued {
    uint64_t sequence = 0;
    bool dropped = false;  // Only a mark of its rows was taken.
  };
  static PlanAppender& Of(Appender& appender) { return static_cast<PlanAppender&>(appender); }

  virtual const Geometry& geometry() const = 0;
  // As the run stores rows, and its server takes them.
  virtual BlockOptions blocks() const = 0;
  // `tensor` null: no recorded rows, `rows` unrecorded ones. An error names the sample.
  absl::StatusOr<AppendPlan> Plan(const AppendOptions& options, const TensorDescription* tensor,
                                  absl::Span<const uint8_t> payload, int64_t rows = 0) const;
  // Takes the plan once there is room; nothing where it would have to wait and must not, and the plan is as it was.
  // Errors as of Append.
  virtual absl::StatusOr<std::optional<Queued>> Enqueue(AppendPlan& plan, bool may_wait) = 0;
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
      : settle_time_(options.append_timeout + std::chrono::seconds(5)) {}

 private:
  // Nothing where it would have to wait and must not.
  absl::StatusOr<std::optional<Queued>> Add(absl::StatusOr<AppendPlan> plan, bool may_wait);

  const std::chrono::milliseconds settle_time_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_APPEND_PLAN_H_
