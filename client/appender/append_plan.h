// Divides an append into the messages in which it is sent.
#ifndef CLIENT_APPENDER_APPEND_PLAN_H_
#define CLIENT_APPENDER_APPEND_PLAN_H_

#include <algorithm>
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
#include "routing_replay/client.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

// How a run stores rows, and the limits of its server.
struct BlockOptions {
  int32_t block_rows = kDefaultBlockRows;
  Codec codec = Codec::kRaw;
  int64_t max_message_bytes = 0;  // Limit of an AppendRequest.
  int64_t max_payload_bytes = 0;  // Limit of one append, after decompression.

  // Most payload bytes of a message, unless a single window has more. gRPC is fastest with messages of 1 to 4 MiB. Half
  // of the limit is reserved for the headers and the token ids.
  int64_t piece_bytes() const { return std::min(int64_t{2} << 20, max_message_bytes / 2); }
};

// One message to send. The sender sets `header.append_id`.
struct AppendPiece {
  AppendHeader header;
  std::vector<absl::Span<const uint8_t>> payload;  // The payload's bytes, as spans in their order.
  std::shared_ptr<const void> owner;               // Keeps the bytes of `payload` alive.
  int64_t payload_bytes = 0;
};

// One append: pieces with consecutive rows. A piece has one weight version. Only the last piece seals the sample, and
// only the first one carries the prefix (AppendOptions::prefix_sample).
struct AppendPlan {
  std::vector<AppendPiece> pieces;  // At least one.
  int64_t bytes = 0;                // Memory that the plan holds; counts towards max_queued_bytes.
  // Called with the outcome, before AppenderOptions::on_outcome, on a thread of the appender. Must not call the
  // appender. May be null.
  std::function<void(const AppendOutcome&)> note;
};

// A nonce with this upper half stands for an attempt, whose number is the lower half (append.proto).
inline constexpr uint64_t kAttemptNonce = uint64_t{0x41545054} << 32;
constexpr std::optional<int64_t> AttemptOf(uint64_t restart_nonce) {
  if (restart_nonce >> 32 != kAttemptNonce >> 32) return std::nullopt;
  return static_cast<uint32_t>(restart_nonce);
}

// PlanRows, PlanBlocks and PlanUnrecorded return INVALID_ARGUMENT that names the field of append.proto if an option
// breaks a rule of ParseAppendRequest, or if token_ids has neither one id per row nor one per position from 0 on.

// Decodes and checks the engine's array and encodes its rows as blocks in this process, so that blocks are sent instead
// of the array. Also fails with the errors of DecodeTensor.
absl::StatusOr<AppendPlan> PlanRows(const AppendOptions& options, const TensorDescription& tensor,
                                    absl::Span<const uint8_t> payload, const Geometry& geometry,
                                    const BlockOptions& blocks);
// Divides decoded rows into pieces. A new piece begins where the weight version changes, and before each window (rows
// 0 … 255, 256 … 511 and so on, if `block_rows` is 256) that would make the piece larger than `piece_bytes`. A single
// window that is larger is not divided.
absl::StatusOr<AppendPlan> PlanBlocks(const AppendOptions& options, DecodedRows rows, int32_t block_rows,
                                      int64_t piece_bytes);
// The rows at which blocks must be cut because the weight version changes there, for DecodeOptions::cuts.
absl::StatusOr<std::vector<int64_t>> WeightCuts(absl::Span<const WeightSpan> weights);
// The parts of `weights` that lie within `rows`.
std::vector<WeightSpan> ClipWeights(absl::Span<const WeightSpan> weights, RowRange rows);
// Returns INVALID_ARGUMENT (kField, "append.weights") unless `weights` are non-empty, ascending, disjoint ranges within
// `rows`.
absl::Status CheckWeightRows(absl::Span<const WeightSpan> weights, RowRange rows);
// Plans an append of `rows` rows that are all unrecorded; options.unrecorded must be empty or cover all of them.
// options.weights is checked, but all rows get options.weight_version.
absl::StatusOr<AppendPlan> PlanUnrecorded(const AppendOptions& options, int64_t rows);

// Returns the append to send instead of `plan` if there is no room for its bytes: the same rows, all unrecorded, in one
// piece without payload per weight version. So later rows leave no gap, and readers learn at once that these rows were
// not recorded.
AppendPlan DropPayload(const AppendPlan& plan);

// All fields of AppenderMetrics, with their names.
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
    {"stale_appends", &AppenderMetrics::stale_appends},
    {"queued_bytes", &AppenderMetrics::queued_bytes},
    {"open_appends", &AppenderMetrics::open_appends},
};

// Adds the ack of one piece to the outcome of its append.
void AddAck(const AppendAck& ack, AppendOutcome& outcome);

// An appender that also takes ready plans. Every Appender that a Run of this client makes is a PlanAppender, so `Of`
// can cast it. Thread-safe.
class PlanAppender : public Appender {
 public:
  struct Queued {
    uint64_t sequence = 0;
    bool dropped = false;  // The queue was full: the rows were queued as unrecorded, without their bytes.
  };
  static PlanAppender& Of(Appender& appender) { return static_cast<PlanAppender&>(appender); }

  const BlockOptions& blocks() const { return blocks_; }
  // Queues the plan once there is room. If `may_wait` is false and it would have to wait: returns nothing and leaves
  // the plan unchanged. Errors as for Append.
  virtual absl::StatusOr<std::optional<Queued>> Enqueue(AppendPlan& plan, bool may_wait) = 0;
  // Waits until the append with this sequence number, and all that were queued before it for the same server, have an
  // outcome. DEADLINE_EXCEEDED after `timeout`; CANCELLED if the appender was closed or this thread's call cancelled.
  virtual absl::Status SettleUpTo(uint64_t sequence, std::chrono::milliseconds timeout) = 0;
  // Time within which every append gets its outcome.
  std::chrono::milliseconds settle_time() const { return settle_time_; }

  absl::Status Append(const AppendOptions& options, const TensorDescription& tensor,
                      absl::Span<const uint8_t> payload) final;
  absl::Status AppendMany(absl::Span<const NewAppend> appends, QueuedAppends& queued, bool may_wait) final;

 protected:
  PlanAppender(std::shared_ptr<const Geometry> geometry, const BlockOptions& blocks, const AppenderOptions& options)
      : geometry_(std::move(geometry)),
        blocks_(blocks),
        settle_time_(options.append_timeout + std::chrono::seconds(5)) {}

 private:
  // If `tensor` is null, the append has the rows in options.unrecorded. Returns nothing if the append would have to
  // wait for room and `may_wait` is false. An error names the sample.
  absl::StatusOr<std::optional<Queued>> Add(const AppendOptions& options, const TensorDescription* tensor,
                                            absl::Span<const uint8_t> payload, bool may_wait);

  const std::shared_ptr<const Geometry> geometry_;
  const BlockOptions blocks_;
  const std::chrono::milliseconds settle_time_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_APPEND_PLAN_H_
