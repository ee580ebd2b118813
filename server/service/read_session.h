// One read: turns a request into a series of messages. Independent of gRPC. At most one sample's snapshot is held at a
// time.
#ifndef SERVER_SERVICE_READ_SESSION_H_
#define SERVER_SERVICE_READ_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/message/read_message.h"
#include "routing_replay/wire/sample.h"
#include "server/admission/byte_budget.h"
#include "server/store/store.h"

namespace routing_replay::server {

struct SampleVerdict {
  SampleStatus status = SampleStatus::kOk;
  std::string message;  // The reason, when not OK.
};

// Only kNotReady is worth waiting for: it may change when the sample grows or is sealed. `until_seal`: a request
// without rows waits for the seal instead of taking the committed rows. `matches` tells whether the sample's tokens fit
// a token check; nothing if they are unknown.
SampleVerdict CheckSample(const SampleState& state, const SampleRead& asked, bool until_seal,
                          const std::function<std::optional<bool>(const TokenCheck&)>& matches);

// Payload bytes to send: by reference, kept alive by `owner`.
struct PayloadPart {
  absl::Span<const uint8_t> bytes;
  std::shared_ptr<const void> owner;
};

struct ReadStep {
  enum class Kind {
    kMessage,  // Send `header`, then `payload`.
    kWait,     // Nothing to send until `wait_for` changes; then call Next again.
    kDone,
    kFailed,  // The read cannot go on, for example because the store does not answer: end it with `failure`.
  };
  Kind kind = Kind::kDone;
  std::string header;
  std::vector<PayloadPart> payload;
  int64_t payload_bytes = 0;
  std::vector<SampleRecord> records;  // Records that `header` contains; for the caller's counters.
  SampleRef wait_for;
  absl::Status failure;
};

// Reserves memory for a read. RESOURCE_EXHAUSTED (kOverBudget) naming read-requests.
absl::StatusOr<ByteReservation> ReserveForRead(ByteBudget& memory, int64_t bytes);

// Not thread-safe.
//
// It reserves memory for the state and the pieces of a sample before it reads them, and for the bytes that it copies
// into a message until it makes the next one. If too little is free for long messages, it makes short ones; if too
// little is free for a sample, the read fails.
class ReadSession {
 public:
  // NOT_FOUND (kNoRun); INVALID_ARGUMENT naming a layer without routes. `store` and `memory` must outlive the session.
  static absl::StatusOr<std::unique_ptr<ReadSession>> Create(Store& store, ByteBudget& memory, ReadRequest request,
                                                             int64_t default_message_bytes);

  // The next step. With `waiting_is_over`, a sample that is still not ready or does not exist is answered NOT_READY or
  // NOT_FOUND.
  ReadStep Next(bool waiting_is_over);

  const std::string& run() const { return request_.run; }
  Producer producer() const { return request_.producer; }

 private:
  ReadSession(Store& store, ByteBudget& memory, ReadRequest request)
      : store_(store), memory_(memory), request_(std::move(request)) {}

  enum class Open { kReady, kRejected, kMustWait };
  Open OpenSample(ReadStep& step, bool waiting_is_over);
  // Adds pieces of the open sample until it ends or the message is full.
  void AddPieces(ReadStep& step);
  // Adds a piece: `rows` of the loaded block, of the layers from `layer_begin` to before `layer_end`.
  void AddRun(ReadStep& step, RowRange rows, int32_t layer_begin, int32_t layer_end);
  void AddCut(ReadStep& step, Piece& piece);
  void AddWholePlanes(ReadStep& step, const Piece& piece);
  // Handles an error of the store: the sample is damaged (DATA_LOSS), or the store does not answer.
  void StopSample(const absl::Status& status);
  void Withdraw(const absl::Status& lost);
  void TakeWithdrawal(ReadStep& step);
  int32_t RunEnd(const BlockRows& stored, int32_t layer_begin, int64_t room) const;
  void AddRecord(ReadStep& step, SampleRecord record);
  // Bytes that still fit into the message.
  int64_t Room(const ReadStep& step) const;
  bool Full(const ReadStep& step) const;

  Store& store_;
  ByteBudget& memory_;
  ReadRequest request_;
  std::shared_ptr<const Geometry> geometry_;
  std::vector<int32_t> ordinals_;  // The MoE ordinal of each of request_.layers.
  int64_t message_bytes_ = 0;

  size_t next_sample_ = 0;  // Index of the open sample, or of the next one to open.
  bool open_ = false;
  SampleSnapshot snapshot_;
  ByteReservation snapshot_memory_;
  size_t next_rows_ = 0;               // Index in snapshot_.rows of the rows to send next.
  std::optional<LoadedBlock> loaded_;  // The block of these rows, once it is needed.
  int32_t next_layer_ = 0;             // Index in ordinals_ of the next layer of these rows to send.
  std::optional<SampleRecord> withdrawal_;
  absl::Status failure_;            // Ends the read once the samples before the failed one are sent.
  std::vector<Piece> pieces_;       // Pieces of the message that is being made.
  int64_t table_bytes_ = 0;         // Approximate size of the message's table of pieces and records.
  int64_t copied_bytes_ = 0;        // Bytes of the message's payload that are copies.
  int64_t room_ = 0;                // Limit of the message's size: table and payload.
  ByteReservation message_memory_;  // For the message that Next made, and the samples that ended in it.
};

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_READ_SESSION_H_
