// Checks each message of a Read before the caller sees it. If a server fails, computes what to request from the next
// one. Independent of gRPC.
//
//   while (const ReadRequest* part = checker->part()) {
//     ask a server for *part; OnBytes for each message; then OnEnd, or OnBreak and another server
//   }
#ifndef CLIENT_READER_READ_CHECKER_H_
#define CLIENT_READER_READ_CHECKER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/wire/buffer.h"
#include "proto/wire/message/read_message.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::client {

// Passes records and pieces to a sink after these checks. Samples come in the order of the request, and the pieces of a
// sample by rows and then by layers. Every piece has the length that follows from the geometry. Every cut (the bytes of
// one layer in a piece) matches its CRC. At the end of an OK sample no row is missing. After a break, a sample that was
// partly read starts again, with a second record that replaces its earlier part. Not thread-safe.
class ReadChecker {
 public:
  // INVALID_ARGUMENT naming a layer without routes. `geometry`, `request` and `sink` must outlive the checker.
  static absl::StatusOr<std::unique_ptr<ReadChecker>> Create(const Geometry& geometry, const ReadRequest& request,
                                                             ReadSink& sink);

  // The request to send now: at first the whole read, after a break the samples that are incomplete. Null when the read
  // is complete. Valid until OnEnd or OnBreak.
  const ReadRequest* part() const { return complete_ ? nullptr : &part_; }
  // Processes a message of the answer. DATA_LOSS (kChecksum) naming sample, layer and row if bytes are damaged;
  // INTERNAL if the server violates the protocol; or the sink's own error. After an error, all later calls return the
  // same error.
  absl::Status OnMessage(const ReadResponse& message);
  // As OnMessage, for an encoded message; INTERNAL if it cannot be parsed.
  absl::Status OnBytes(const ByteChain& bytes);
  // Call this when the answer has ended normally. DATA_LOSS if something is missing.
  absl::Status OnEnd();
  // Call this when the connection or the server failed before the end of the answer. part() is then the request for the
  // samples that are still incomplete.
  void OnBreak();

 private:
  ReadChecker(const Geometry& geometry, const ReadRequest& request, ReadSink& sink)
      : geometry_(geometry), request_(request), sink_(sink), part_(request) {}

  absl::Status Take(const ReadResponse& message);
  absl::Status OnRecord(SampleRecord record);
  // Returns the next bytes as one contiguous piece: in the sink's staging buffer, else valid only until the next call.
  absl::Span<const uint8_t> Gather(ChainCursor& payload, size_t bytes);
  absl::Status OnPiece(const Piece& piece, int32_t sample, absl::Span<const uint8_t> bytes);
  absl::Status CheckPlace(const Piece& piece, int32_t sample);
  absl::Status CheckBytes(const Piece& piece, absl::Span<const uint8_t> bytes) const;
  // Checks that the current sample is complete.
  absl::Status EndSample() const;
  absl::Status Error(absl::StatusCode code, Reason reason, absl::string_view what) const;
  std::string SampleName() const;

  const Geometry& geometry_;
  const ReadRequest& request_;
  ReadSink& sink_;
  std::vector<int32_t> ordinals_;  // Of the requested layers.
  absl::Status failed_;            // The first error.
  ReadRequest part_;
  int32_t first_ = 0;  // Index in the request of part_'s first sample.
  bool complete_ = false;

  int32_t sample_ = -1;            // The index of the sample of the last record.
  bool expects_pieces_ = false;    // The status in the last record is OK, so pieces follow it.
  std::vector<RowRange> missing_;  // Rows that have not begun to arrive, ascending, from next_missing_ on.
  size_t next_missing_ = 0;        // Index in missing_ of the first rows that have not begun to arrive.
  RowRange open_rows_;             // Rows of which the layers [0, next_layer_) have arrived, but not the others.
  int32_t next_layer_ = 0;         // 0: open_rows_ is not in use.
  Buffer scratch_;                 // Joins a piece that lies in several spans.
};

// Returns the rows that the server must send after an OK record, as a normal list (row_range.h): the requested rows, or
// all if none are named, without the unrecorded ones.
std::vector<RowRange> PromisedRows(const SampleRead& asked, const SampleRecord& record);

// Returns the ordinals of `layers`, or of all MoE layers if `layers` is empty. INVALID_ARGUMENT naming a layer without
// routes.
absl::StatusOr<std::vector<int32_t>> LayerOrdinals(const Geometry& geometry, absl::Span<const int32_t> layers);

}  // namespace routing_replay::client

#endif  // CLIENT_READER_READ_CHECKER_H_
