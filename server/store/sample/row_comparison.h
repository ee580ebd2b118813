// Compares new rows with stored ones.
#ifndef SERVER_STORE_SAMPLE_ROW_COMPARISON_H_
#define SERVER_STORE_SAMPLE_ROW_COMPARISON_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"
#include "server/store/sample/row_pieces.h"

namespace routing_replay::server {

struct RowDifferences {
  int64_t rows = 0;
  int64_t first_row = 0;  // Where rows > 0.
};

// The rows of `range` that are recorded on both sides and differ. DATA_LOSS (kChecksum) if they differ because a stored
// block is damaged. Thread-safe.
absl::StatusOr<RowDifferences> CompareRows(const Geometry& geometry, const RowPieces& stored,
                                           absl::Span<const Block> blocks, RowRange range);

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_ROW_COMPARISON_H_
