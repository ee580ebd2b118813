// Engine bytes → checked blocks: the only place where an engine's array is decoded, checked, narrowed and tiled. The
// client library and the server call the same function.
#ifndef PROTO_WIRE_PAYLOAD_TENSOR_PAYLOAD_H_
#define PROTO_WIRE_PAYLOAD_TENSOR_PAYLOAD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay {
inline namespace wire {

struct DecodeOptions {
  int64_t row_start = 0;  // Absolute number of the append's first row, which may be an unrecorded one.
  // Slots of the tensor's first axis to use; the others are ignored. Absent: all.
  std::optional<RowRange> take;
  // The rows of the append that the engine did not deliver, as a normal list (row_range.h). The tensor has no slots for
  // them. Example: a tensor of 3 rows with row_start 10 and unrecorded [11, 13) holds the rows 10, 13 and 14.
  std::vector<RowRange> unrecorded;
  std::optional<int64_t> expected_rows;  // Rows of the append, unrecorded ones included; another count is rejected.
  int32_t block_rows = kDefaultBlockRows;
  std::vector<int64_t> cuts;  // Absolute rows at which a block begins, besides the starts of windows; ascending.
  Codec codec = Codec::kRaw;
  int64_t max_payload_bytes = int64_t{256} << 20;  // After decompression, before base64 is decoded.
};

struct DecodedRows {
  RowRange rows;  // Absolute; includes unrecorded rows.
  // DecodeOptions::unrecorded and the rows whose ids are all −1, merged into one normal list.
  std::vector<RowRange> unrecorded;
  std::vector<Block> blocks;  // Ascending, with CRCs; split at windows, cuts and unrecorded ranges.
};

// Decodes, checks and tiles. Errors are INVALID_ARGUMENT with an ErrorDetail whose field is "payload" or "append.…",
// and whose row (absolute) and layer (global id) are set where they exist:
//   malformed base64, npy or zstd, npy data of another size than its header states, an incomplete element: kEncoding
//   dtype not allowed or contradicting the header: kDType
//   wrong rank, layer axis or K: kShape                bytes != rows·layers·K·itemsize, or over the limit: kLength
//   id >= E or below −1: kIdRange                      row that is −1 in part: kPartialRow
//   id twice in a row of a MoE layer (K >= 2): kDuplicateId     a MoE layer zero in every row (K >= 2): kAllZeroLayer
//   take beyond the tensor's rows, unrecorded that is not a normal list inside the rows: kField
//   row count other than expected_rows, or rows past kMaxRows: kRowCount
//   more than kMaxUnrecordedRanges ranges of −1 rows: kLength
// The K axis is as long as the largest K of all layers; slots beyond a layer's own K and dense columns are ignored. No
// allocation is larger than max_payload_bytes plus the result.
absl::StatusOr<DecodedRows> DecodeTensor(const Geometry& geometry, const TensorDescription& description,
                                         absl::Span<const uint8_t> payload, const DecodeOptions& options);

// Returns the column of each MoE layer, by ordinal, in the payload's layer axis, which has `layers` columns. If they do
// not match: INVALID_ARGUMENT (kShape or kField) that names the field and the layer.
absl::StatusOr<std::vector<int32_t>> MoeColumns(const Geometry& geometry, const TensorDescription& description,
                                                int64_t layers);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_PAYLOAD_TENSOR_PAYLOAD_H_
