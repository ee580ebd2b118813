// What a reader does with each message of a Read before the caller sees it. Knows no gRPC.
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

// How far a read has come.
struct ReadProgress {
  int32_t sample = -1;            // Whose record came last; -1: none has.
  std::vector<RowRange> missing;  // Its rows that have not begun to come.
  RowRange open_rows;             // Rows of which only the first `open_layers` layers have come, where those are not 0.
  int32_t open_layers = 0;
};

// Hands records and pieces to a sink after checking that they are what was asked for: samples in the order asked, the
// pieces of a sample by rows and then by layers, every length as the geometry says, every cut fitting its CRC, and at
// the end of an OK sample no row missing. Not thread-safe.
class ReadChecker {
 public:
  // INVALID_ARGUMENT naming a layer that carries no routes. `geometry`, `request` and `sink` must outlive the checker.
  static absl::StatusOr<std::unique_ptr<ReadChecker>> Create(const Geometry& geometry, const ReadRequest& request,
                                                             ReadSink& sink);

  // DATA_LOSS (kChecksum) naming sample, layer and row if bytes are damaged; INTERNAL if the server does not keep to
  // the protocol; else the sink's own error. An error stays: all later calls give it again.
  absl::Status OnMessage(const ReadResponse& message);
  // The same of a message as it was received; INTERNAL if it cannot be read.
  absl::Status OnBytes(const ByteChain& bytes);
  // The stream has ended well: DATA_LOSS if something is missing.
  absl::Status OnEnd();
  ReadProgress progress() const;

 private:
  ReadChecker(const Geometry& geometry, const ReadRequest& request, ReadSink& sink)
      : geometry_(geometry), request_(request), sink_(sink) {}

  absl::Status Take(const ReadResponse& message);
  absl::Status OnRecord(const SampleRecord& record);
  // The next bytes in one piece: in the sink's staging, or for a moment.
  absl::Span<const uint8_t> Gather(ChainCursor& payload, size_t bytes);
  absl::Status OnPiece(const Piece& piece, absl::Span<const uint8_t> bytes);
  absl::Status CheckPlace(const Piece& piece);
  absl::Status CheckBytes(const Piece& piece, absl::Span<const uint8_t> bytes) const;
  // Nothing of the present sample is missing.
  absl::Status EndSample() const;
  absl::Status Error(absl::StatusCode code, Reason reason, absl::string_view what) const;
  std::string SampleName() const;

  const Geometry& geometry_;
  const ReadRequest& request_;
  ReadSink& sink_;
  std::vector<int32_t> ordinals_;  // Of the asked layers.
  absl::Status failed_;            // What went wrong first.

  int32_t sample_ = -1;            // Whose record came last.
  bool expects_pieces_ = false;    // Its status is OK and it was not taken back.
  std::vector<RowRange> missing_;  // Its recorded rows that have not begun to come, ascending …
  size_t next_missing_ = 0;        // … from here on.
  RowRange open_rows_;             // Rows of which only layers [0, next_layer_) have come.
  int32_t next_layer_ = 0;         // 0: none open.
  Buffer scratch_;                 // Of a piece that lies in several spans.
};

// The rows that an OK record promises for what was asked of its sample: those asked for that are recorded. Normal list.
std::vector<RowRange> PromisedRows(const SampleRead& asked, const SampleRecord& record);

// The ordinals of `layers`, or of all MoE layers where it is empty. INVALID_ARGUMENT naming one that carries no routes.
absl::StatusOr<std::vector<int32_t>> LayerOrdinals(const Geometry& geometry, absl::Span<const int32_t> layers);

}  // namespace routing_replay::client

#endif  // CLIENT_READER_READ_CHECKER_H_
