// Processes one append, from its parsed message to the store's ack. Used by Append and Put; independent of gRPC.
#ifndef SERVER_SERVICE_APPEND_PROCESSOR_H_
#define SERVER_SERVICE_APPEND_PROCESSOR_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/wire/message/append_message.h"
#include "proto/wire/mutex.h"
#include "server/admission/byte_budget.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Remembers the last acknowledged appends that have a resend_key. If the sample of one was released, a late retry of it
// gets this ack again, and does not create the sample once more. Takes at most 6 MB. Thread-safe.
class RecentAppends {
 public:
  static constexpr size_t kCapacity = 65'536;

  // Returns the ack of the append with this header if it is remembered; only what struct Known has.
  std::optional<AppendAck> Find(absl::string_view run, const AppendHeader& header) const;
  // Records an append that was acknowledged with `ack`.
  void Add(absl::string_view run, const AppendHeader& header, const AppendAck& ack);

 private:
  struct Known {
    int64_t committed_rows = 0;
    int64_t revision = 0;
    uint64_t content_id = 0;
    bool sealed = false;
  };

  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Known> known_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> order_ ABSL_GUARDED_BY(mutex_);  // Keys of known_, oldest first.
};

// Thread-safe.
class AppendProcessor {
 public:
  // `store` and `budget` must outlive the processor. `max_payload_bytes`: limit of one append after decompression.
  AppendProcessor(Store& store, ByteBudget& budget, int64_t max_payload_bytes)
      : store_(store), budget_(budget), max_payload_bytes_(max_payload_bytes) {}

  // `request.append` must be set. `reservation` covers the payload's bytes; it is given back, or passed to the
  // store, before Process returns. Errors are part of the ack, as in a stream.
  AppendAck Process(absl::string_view run, AppendRequest request, ByteReservation reservation) const;

 private:
  // The ack for a retried append whose sample has been removed since it was acknowledged; otherwise nothing.
  std::optional<AppendAck> AckOfGone(absl::string_view run, const AppendHeader& header) const;
  absl::StatusOr<AppendAck> Run(absl::string_view run, AppendRequest& request, ByteReservation reservation) const;
  // Checks the append and stores it. If `parts` is empty, `request` keeps its payload, so that Append can be called
  // with it again.
  absl::StatusOr<AppendAck> Append(const RunInfo& run, AppendRequest& request, std::vector<Buffer> parts,
                                   ByteReservation reservation) const;

  Store& store_;
  ByteBudget& budget_;
  const int64_t max_payload_bytes_;
  mutable RecentAppends recent_;
};

// Splits the payload into encoded blocks and checks lengths, ranges, CRCs and ids: INVALID_ARGUMENT naming field, row
// and layer. The store checks which rows the blocks have. `parts`: AppendRequest::payload_parts; blocks are made of
// them without a copy if each part is one block.
absl::StatusOr<std::vector<Block>> TakeEncodedBlocks(const Geometry& geometry, int32_t block_rows,
                                                     const AppendHeader& header, const ByteChain& payload,
                                                     std::vector<Buffer> parts = {});

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_APPEND_PROCESSOR_H_
