// What a reader does with each message of a Read before the caller sees it, and what it asks the next server for when
// one went away. Knows no gRPC.
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

// Hands records and pieces to a sink after checking that they are what was asked for: samples in the order asked, the
// pieces of a sample by rows and then by layers, every length as the geometry says, every cut fitting its CRC, and at
// the end of an OK sample no row missing. After a break the sample that was half there begins again, with a record that
// takes back what came of it. Not thread-safe.
class ReadChecker {
 public:
  // INVALID_ARGUMENT naming a layer that carries no routes. `geometry`, `request` and `sink` must outlive the checker.
  static absl::StatusOr<std::unique_ptr<ReadChecker>> Create(const Geometry& geometry, const ReadRequest& request,
                                                             ReadSink& sink);

  // What to ask for now: at first the request, after a break its samples that have not come in full. Null once the read
  // is complete. Valid until OnEnd or OnBreak.
  const ReadRequest* part() const { return complete_ ? nullptr : &part_; }
  // A message of the answer. DATA_LOSS (kChecksum) naming sample, layer and row if bytes are damaged; INTERNAL if the
  // server does not keep to the protocol; else the sink's own error. An error stays: all later calls give it again.
  absl::Status OnMessage(const ReadResponse& message);
  // The same of a message as it was received; INTERNAL if it cannot be read.
  absl::Status OnBytes(const ByteChain& bytes);
  // The answer ended well: DATA_LOSS if something is missing.
  absl::Status OnEnd();
  // The answer broke off.
  void OnBreak();

 private:
  ReadChecker(const Geometry& geometry, const ReadRequest& request, ReadSink& sink)
      : geometry_(geometry), request_(request), sink_(sink), part_(request) {}

  absl::Status Take(const ReadResponse& message);
  absl::Status OnRecord(SampleRecord record);
  // The next bytes in one piece: in the sink's staging, or for a moment.
  absl::Span<const uint8_t> Gather(ChainCursor& payload, size_t bytes);
  absl::Status OnPiece(const Piece& piece, int32_t sample, absl::Span<const uint8_t> bytes);
  absl::Status CheckPlace(const Piece& piece, int32_t sample);
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
  ReadRequest part_;
  int32_t first_ = 0;  // Of the request: the first sample of part_.
  bool complete_ = false;

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
