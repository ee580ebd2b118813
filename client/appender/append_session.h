// The client's side of the Append protocol, without threads and I/O. Decides when to connect, how much credit to
// request, what to send and to resend, and what an answer means.
#ifndef CLIENT_APPENDER_APPEND_SESSION_H_
#define CLIENT_APPENDER_APPEND_SESSION_H_

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/appender/append_plan.h"
#include "proto/wire/backoff.h"
#include "proto/wire/clock.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/message/byte_chain.h"
#include "routing_replay/client.h"

namespace routing_replay::client {

// Appends of many samples that wait for their outcome, oldest first. Unacknowledged appends are sent again: on the next
// stream after a broken one, or after a rejection that may be temporary. The server accepts a repeated append once,
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
    std::function<void(const AppendOutcome&)> note;  // AppendPlan::note of this append.
  };

  // `backoff` says how long to wait after a rejection, unless the server demands a longer wait.
  // Sequence numbers are `first`, `first` + `step`, …
  AppendQueue(std::string run, Backoff backoff, uint64_t first = 1, uint64_t step = 1)
      : run_(std::move(run)), backoff_(std::move(backoff)), next_sequence_(first), sequence_step_(step) {}

  // Adds an append that fails unless it is acknowledged by `deadline`; deadlines must not decrease. Returns its
  // sequence number.
  uint64_t Add(AppendPlan plan, Clock::Time deadline);

  // A new stream begins. It has no credit yet: the server must first grant payloads above kFreePayloadBytes.
  void OnStreamStart();
  // Returns the message to send now on the current stream. If it returns nothing, call it again when an answer arrives,
  // at the time of NextEvent, and after Add.
  std::optional<Message> NextMessage(Clock::Time now);
  void OnResponse(const AppendResponse& response, Clock::Time now);
  // The stream ended, with any status. Appends without an ack will be sent again. If `why` is a permanent error, the
  // append in flight that was sent first fails with it; if none is in flight, the next one to send does.
  void OnStreamEnd(const absl::Status& why);

  // Fails the appends that were not acknowledged in time. Returns true if a piece of them was sent on this stream and
  // not answered: then the stream may be stuck.
  bool Expire(Clock::Time now);
  // The next time at which Expire or NextMessage may have something to do without an answer.
  std::optional<Clock::Time> NextEvent(Clock::Time now) const;

  // Returns NextMessage if the append that was added last is small and no other append waits to be sent; else nothing.
  std::optional<Message> NextIfSmall(Clock::Time now);

  // Outcomes since the last call.
  std::vector<Finished> TakeFinished() { return std::exchange(finished_, {}); }

  // True if something waits to be sent.
  bool HasUnsent() const { return !to_send_.empty(); }
  bool empty() const { return pending_.empty(); }
  // Memory held by appends without an outcome.
  int64_t queued_bytes() const { return queued_bytes_; }
  const AppenderMetrics& metrics() const { return metrics_; }
  void CountReconnect() { ++metrics_.reconnects; }

 private:
  struct PieceState {
    AppendPiece piece;
    bool was_sent = false;
  };
  struct Pending {
    std::vector<PieceState> pieces;
    size_t unacknowledged = 0;
    int64_t bytes = 0;
    Clock::Time deadline;
    Finished end;
  };
  // Identifies a piece of an append. Pieces are sent in ascending order.
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
  // Queues the piece to be sent again, and with it the later pieces of its sample that are in flight: the server will
  // reject those, because without this piece they leave a gap.
  void SendAgain(PieceRef ref);
  void QueueToSend(PieceRef ref);
  void Finish(uint64_t sequence, const absl::Status& status);
  Clock::Duration RejectionDelay(const absl::Status& rejection);

  const std::string run_;
  Backoff backoff_;
  std::map<uint64_t, Pending> pending_;  // By sequence number, which is also the order of the deadlines.
  std::set<PieceRef> to_send_;
  std::map<uint64_t, PieceRef> in_flight_;  // By append_id; a piece that is sent again gets a new append_id.
  std::vector<Finished> finished_;
  uint64_t next_sequence_;
  const uint64_t sequence_step_;
  uint64_t next_append_id_ = 1;
  int64_t queued_bytes_ = 0;
  int64_t unsent_bytes_ = 0;  // Payload bytes of to_send_.

  // State of the current stream.
  bool named_run_ = false;
  int64_t credit_ = 0;
  bool asked_ = false;       // A request for credit (want_bytes) was sent and not answered yet.
  bool ask_little_ = false;  // A request for credit was rejected: request only enough for the next piece.
  Clock::Time ask_after_;
  Clock::Time send_after_;

  // The last failure of a stream, a credit request or an append; OK after a success. Expired appends fail with it.
  absl::Status trouble_;
  AppenderMetrics metrics_;
};

// Identifies the appends for which Appender::Settle waits.
struct SampleAttempt {
  std::string sample;
  std::optional<int64_t> attempt;
  friend auto operator<=>(const SampleAttempt&, const SampleAttempt&) = default;
};

// Returns the worse of two troubles: the one whose rows are not marked as unrecorded in the store, because readers
// cannot see that loss. If that does not decide, returns the first.
std::optional<AppendTrouble> Worse(std::optional<AppendTrouble> one, std::optional<AppendTrouble> other);

// The appends that have no outcome yet, and what went wrong with each sample. Not thread-safe.
class OpenAppends {
 public:
  // Number of samples whose trouble is remembered; the oldest are forgotten first.
  static constexpr size_t kDefaultRemembered = 100'000;

  explicit OpenAppends(size_t remembered = kDefaultRemembered) : remembered_(remembered) {}

  // `dropped`: the queue was full, so that only a mark for the rows was queued, not the rows themselves.
  void Add(uint64_t sequence, SampleAttempt key, bool dropped);
  // Returns true if the append was rejected because a later attempt has replaced its attempt. That is not a failure.
  bool Finish(const AppendOutcome& outcome);

  bool Has(const SampleAttempt& key) const { return counts_.count(key) > 0; }
  // What went wrong with a sample. Returns the same until another append of the sample is added.
  std::optional<AppendTrouble> TellTrouble(const SampleAttempt& key);

  size_t size() const { return keys_.size(); }
  // The highest open sequence number; 0 if none is open.
  uint64_t newest() const { return keys_.empty() ? 0 : keys_.rbegin()->first; }
  bool HasUpTo(uint64_t sequence) const { return !keys_.empty() && keys_.begin()->first <= sequence; }

 private:
  struct Remembered {
    SampleAttempt key;
    AppendTrouble trouble;
    bool told = false;
  };
  using Troubles = std::list<Remembered>;  // Oldest first.

  void Forget(Troubles::iterator trouble);
  void Note(const SampleAttempt& key, AppendTrouble trouble);

  const size_t remembered_;
  std::map<uint64_t, SampleAttempt> keys_;  // By sequence number.
  std::map<SampleAttempt, size_t> counts_;  // How many appends of the sample are open.
  Troubles troubles_;
  std::map<SampleAttempt, Troubles::iterator> trouble_of_;
};

// Logs the failed appends of one appender: at most 20 lines in 10 seconds, then one line with the count of the others.
// Not thread-safe.
class FailureLog {
 public:
  explicit FailureLog(std::string run) : run_(std::move(run)) {}

  // Logs a line; only counts the failure if there were too many lines recently.
  void Add(absl::string_view sample, const absl::Status& why, Clock::Time now);
  // Logs how many failures were only counted, if there are any.
  void TellRest();

 private:
  const std::string run_;
  Clock::Time since_;  // Start of the current 10 seconds.
  int lines_ = 0;      // Lines logged since `since_`.
  int64_t rest_ = 0;   // Failures that were only counted.
};

// Decides what an appender does. The appender calls Next, does what it says, and reports the result. Not thread-safe.
class AppendSession {
 public:
  struct Options {
    std::string run;
    int64_t max_queued_bytes = 0;
    std::chrono::milliseconds append_timeout{0};
    uint64_t first_sequence = 1, sequence_step = 1;
  };
  enum class Step {
    kWait,     // Nothing to do before `until`, Add, or an event of the stream.
    kConnect,  // Start a stream; OnStreamEnd must follow at some time.
    kSend,     // Send `message` on the stream.
    kCancel,   // Cancel the stream.
  };
  struct Action {
    Step step = Step::kWait;
    Clock::Time until;
    AppendQueue::Message message;
  };

  // Tests pass backoffs whose waits are fixed instead of random.
  explicit AppendSession(const Options& options, Backoff rejection_backoff = Backoff(kRejectionBackoff),
                         Backoff reconnect_backoff = Backoff(kReconnectBackoff));

  // True if an append of this many bytes may be added. An empty queue takes any append, however big.
  bool HasRoom(int64_t bytes) const;
  // Returns the error for an append that found no room: RESOURCE_EXHAUSTED (kOverBudget).
  absl::Status NoRoom(absl::string_view sample) const;
  // Adds an append and returns its sequence number. Times must not decrease from call to call. `dropped`: the append
  // found no room, so adds DropPayload(plan), which only marks its rows as unrecorded.
  uint64_t Add(AppendPlan plan, Clock::Time now, bool dropped = false);

  // `can_write` says whether the stream accepts another message now. Call again after each action except kWait.
  Action Next(Clock::Time now, bool can_write);
  // Returns the message of the append that was added last, if that append is small and nothing waits before it. Call
  // this only if the stream accepts a message now. Next need not be called afterwards: the `until` that it returned
  // last still holds.
  std::optional<AppendQueue::Message> NextIfSmall(Clock::Time now);
  // Handles a message from the server, or the error with which receiving it failed.
  void OnMessage(const absl::StatusOr<ByteChain>& bytes, Clock::Time now);
  void OnStreamEnd(absl::Status why, Clock::Time now);
  // The client itself has ended the stream, for a fork, so the next stream may begin without a pause.
  void OnRest(Clock::Time now);

  // Outcomes since the last call. Their appends count as open until OnDelivered.
  std::vector<AppendQueue::Finished> TakeFinished() { return queue_.TakeFinished(); }
  void OnDelivered(const std::vector<AppendOutcome>& outcomes);
  // The sequence number of the newest open append; 0 if none is open.
  uint64_t newest_open() const { return open_.newest(); }
  size_t open_count() const { return open_.size(); }
  // True if no append up to `sequence` is open.
  bool Settled(uint64_t sequence) const { return !open_.HasUpTo(sequence); }
  // Settled: true if no append of the sample is open. TellTrouble: what went wrong with the sample.
  bool Settled(const SampleAttempt& key) const { return !open_.Has(key); }
  std::optional<AppendTrouble> TellTrouble(const SampleAttempt& key) { return open_.TellTrouble(key); }
  // Returns the error for a wait for outcomes that took too long: DEADLINE_EXCEEDED.
  absl::Status NotFlushed() const;
  // The result of Appender::Flush for what was delivered since the last call. An append whose attempt a later one has
  // replaced is no failure; only the counter stale_appends shows it.
  absl::Status TakeError(AppendFailures* failures = nullptr);

  AppenderMetrics metrics() const;

 private:
  static constexpr Backoff::Options kRejectionBackoff{.initial = std::chrono::milliseconds(5),
                                                      .maximum = std::chrono::milliseconds(500)};
  static constexpr Backoff::Options kReconnectBackoff{.initial = std::chrono::milliseconds(50),
                                                      .maximum = std::chrono::seconds(1)};
  enum class State { kIdle, kStreaming, kEnding };

  const Options options_;
  AppendQueue queue_;
  Backoff reconnect_backoff_;
  State state_ = State::kIdle;
  Clock::Time connect_after_;
  bool connected_before_ = false;
  bool stuck_ = false;       // The stream is being ended because the server does not answer.
  bool unreadable_ = false;  // A message of the server could not be parsed: the stream must end.
  OpenAppends open_;
  AppendFailures failures_;
  FailureLog log_;
  int64_t stale_appends_ = 0;
  int64_t dropped_appends_ = 0;
  int64_t dropped_rows_ = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_APPENDER_APPEND_SESSION_H_
