// The client's side of the Append protocol, without I/O: what to send next, what an answer means, what to send again.
#ifndef CLIENT_APPENDER_APPEND_QUEUE_H_
#define CLIENT_APPENDER_APPEND_QUEUE_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/appender/append_plan.h"
#include "proto/wire/backoff.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/append_message.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Appends of many samples that wait for their outcome, oldest first. What is not acknowledged is sent again: on the
// next stream after a broken one, or after a refusal that time may cure. The server takes a repeated append once,
// because it trims the rows that it has. Appends of one sample are sent, and their outcomes given, in the order of Add.
// Not thread-safe.
class AppendQueue {
 public:
  // A message to send: `header`, then the payload.
  struct Message {
    std::string header;
    std::vector<absl::Span<const uint8_t>> payload;
    std::shared_ptr<const void> owner;
  };
  struct Finished {
    AppendOutcome outcome;
    std::function<void(const AppendOutcome&)> note;  // Of its plan.
  };

  // `backoff` says how long to wait after a refusal (at least what the server says).
  // Sequence numbers are `first`, `first` + `step`, …
  AppendQueue(std::string run, Backoff backoff, uint64_t first = 1, uint64_t step = 1)
      : run_(std::move(run)), backoff_(std::move(backoff)), next_sequence_(first), sequence_step_(step) {}

  // Takes an append that fails unless it is acknowledged by `deadline`; deadlines must not decrease. Returns its
  // sequence number.
  uint64_t Add(AppendPlan plan, Clock::Time deadline);

  // A new stream: nothing is granted yet.
  void OnStreamStart();
  // What to send now on the present stream; nothing if that has to wait for an answer, for NextEvent or for Add.
  std::optional<Message> NextMessage(Clock::Time now);
  void OnResponse(const AppendResponse& response, Clock::Time now);
  // The stream ended, whatever its status. Appends without an ack will be sent again. If `why` is an error that time
  // does not cure, the oldest unacknowledged append, which the server must have ended the stream for, fails with it.
  void OnStreamEnd(const absl::Status& why);

  // Fails what has not been acknowledged in time. True if some of it was sent: the stream may be stuck.
  bool Expire(Clock::Time now);
  // The next time at which Expire or NextMessage may have something to do without an answer.
  std::optional<Clock::Time> NextEvent(Clock::Time now) const;

  // Outcomes since the last call.
  std::vector<Finished> TakeFinished() { return std::exchange(finished_, {}); }

  // True if something waits to be sent.
  bool HasUnsent() const { return !to_send_.empty(); }
  bool empty() const { return pending_.empty(); }
  // Memory held by appends without an outcome.
  int64_t queued_bytes() const { return queued_bytes_; }
  const AppenderMetrics& metrics() const { return metrics_; }
  void CountReconnect() { ++metrics_.reconnects; }
  // An append that the ingest checks refused before it could be added.
  void CountRefusal(Reason reason);

 private:
  struct PieceState {
    AppendPiece piece;
    bool was_sent = false;
  };
  static bool IsUnrecorded(const std::vector<PieceState>& pieces);
  struct Pending {
    std::vector<PieceState> pieces;
    size_t unacknowledged = 0;
    int64_t bytes = 0;
    Clock::Time deadline;
    Finished end;
  };
  // Ordered as pieces are to be sent.
  struct PieceRef {
    uint64_t sequence = 0;
    size_t piece = 0;
    friend auto operator<=>(const PieceRef&, const PieceRef&) = default;
  };

  PieceState& At(PieceRef ref) { return pending_.at(ref.sequence).pieces[ref.piece]; }
  const PieceState& At(PieceRef ref) const { return pending_.at(ref.sequence).pieces[ref.piece]; }
  static bool AreOfOneSample(const AppendPiece& a, const AppendPiece& b) {
    return a.header.producer == b.header.producer && a.header.sample == b.header.sample;
  }

  uint64_t WantBytes(int64_t head_bytes, Clock::Time now) const;
  Message Send(PieceRef ref, AppendRequest request);
  void OnCredit(const Credit& credit, Clock::Time now);
  void OnAck(const AppendAck& ack, Clock::Time now);
  void Acknowledge(PieceRef ref, const AppendAck& ack);
  // The piece and what was sent of its sample after it: the server will refuse that for the gap.
  void SendAgain(PieceRef ref);
  void QueueToSend(PieceRef ref);
  void Finish(uint64_t sequence, const absl::Status& status);
  Clock::Duration RefusalDelay(const absl::Status& refusal);

  const std::string run_;
  Backoff backoff_;
  std::map<uint64_t, Pending> pending_;  // By sequence number, and so by deadline.
  std::set<PieceRef> to_send_;
  std::map<uint64_t, PieceRef> in_flight_;  // By append_id; each attempt has its own.
  std::vector<Finished> finished_;
  uint64_t next_sequence_;
  const uint64_t sequence_step_;
  uint64_t next_append_id_ = 1;
  int64_t queued_bytes_ = 0;
  int64_t unsent_bytes_ = 0;  // Payload bytes of to_send_.

  // Of the present stream.
  bool named_run_ = false;
  int64_t credit_ = 0;
  bool asked_ = false;       // A want_bytes is unanswered.
  bool ask_little_ = false;  // After a refusal: only for the next piece.
  Clock::Time ask_after_;
  Clock::Time send_after_;

  absl::Status trouble_;  // Why things do not move; OK when they do.
  AppenderMetrics metrics_;
};

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_APPEND_QUEUE_H_
