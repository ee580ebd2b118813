// One append, from the bytes of its message to the store's ack: shared by Append and Put, knows no gRPC.
#ifndef SERVER_SERVICE_APPEND_PROCESSOR_H_
#define SERVER_SERVICE_APPEND_PROCESSOR_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "proto/wire/message/append_message.h"
#include "server/admission/byte_budget.h"
#include "server/service/recent_appends.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Thread-safe.
class AppendProcessor {
 public:
  struct Options {
    int64_t max_payload_bytes = 0;
    bool verify_duplicates = false;  // In encoded blocks, too.
  };
  // `store` and `budget` must outlive the processor.
  AppendProcessor(Store& store, ByteBudget& budget, const Options& options)
      : store_(store), budget_(budget), options_(options) {}

  // `request.append` must be there; `run` is the stream's. `reservation` covers the payload's bytes and is given back,
  // or handed to the store, before the return. An error is also in the ack, where a stream reports it.
  AppendAck Process(absl::string_view run, AppendRequest request, ByteReservation reservation) const;

 private:
  // The ack of an append that is sent again and whose sample is gone since.
  std::optional<AppendAck> AckOfGone(absl::string_view run, const AppendHeader& header) const;
  absl::StatusOr<AppendAck> Run(absl::string_view run, AppendRequest& request, ByteReservation reservation) const;
  // `request` can be processed again.
  absl::StatusOr<AppendAck> Append(const RunInfo& run, AppendRequest& request, ByteReservation reservation) const;

  Store& store_;
  ByteBudget& budget_;
  const Options options_;
  mutable RecentAppends recent_;
};

// Cuts the payload of encoded blocks apart and checks lengths, ranges, CRCs and ids: INVALID_ARGUMENT naming field, row
// and layer. The blocks must be exactly header.rows without header.unrecorded.
absl::StatusOr<std::vector<Block>> TakeEncodedBlocks(const Geometry& geometry, int32_t block_rows,
                                                     const AppendHeader& header, const ByteChain& payload,
                                                     bool verify_duplicates);

}  // namespace routing_replay::server

#endif  // SERVER_SERVICE_APPEND_PROCESSOR_H_
