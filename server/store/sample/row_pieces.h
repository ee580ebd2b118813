// The recorded rows of one sample in memory: an ascending list of pieces, each a range of rows of a counted block.
//
//   window 0              window 1              window 2 (open)
//   [ one block        ]  [ block ][ block  ]   [ piece ][ piece ]        gaps are unrecorded rows
//
// Blocks are immutable once stored. Several samples (forks) and readers may hold the same block; its bytes go back to
// the budget with the last of them.
#ifndef SERVER_STORE_SAMPLE_ROW_PIECES_H_
#define SERVER_STORE_SAMPLE_ROW_PIECES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "server/store/sample/stored_block.h"

namespace routing_replay::server {

struct RowPiece {
  std::shared_ptr<StoredBlock> stored;
  RowRange rows;        // Inside stored->rows().
  bool shared = false;  // Came with a prefix: charged to the sample that it came from.

  // Nobody else can reach the block, now or later, unless through this piece.
  bool exclusive() const { return stored.use_count() == 1; }
};

// Index of the first of ascending pieces that ends after `row`; size() if there is none.
size_t FirstEndingAfter(absl::Span<const RowPiece> pieces, int64_t row);

// A list of pieces. Move-only. Not thread-safe. What it hands out is destroyed by the caller, outside of locks.
class RowPieces {
 public:
  RowPieces() = default;
  RowPieces(RowPieces&&) = default;
  RowPieces& operator=(RowPieces&&) = default;

  absl::Span<const RowPiece> all() const { return pieces_; }
  size_t size() const { return pieces_.size(); }
  const RowPiece& operator[](size_t i) const { return pieces_[i]; }
  size_t FirstEndingAfter(int64_t row) const { return server::FirstEndingAfter(pieces_, row); }
  // Bytes charged for the pieces that are not shared.
  int64_t charged_bytes() const;
  // Bytes charged for the blocks that nobody else holds.
  int64_t exclusive_bytes() const;
  // Moves exclusive_bytes() into `pool`, for pieces that are about to go.
  void TakeExclusiveCharges(ByteReservation& pool);

  void Append(RowPiece piece);
  // Removes the pieces from index `first` on.
  std::vector<RowPiece> TakeFrom(size_t first);
  // Keeps rows [0, rows): a piece across the end is cut, its block stays whole.
  std::vector<RowPiece> Truncate(int64_t rows);
  // The rows [0, rows) of the same blocks, marked as shared.
  RowPieces Prefix(int64_t rows) const;

  // The parts of pieces inside `range`, ascending.
  std::vector<RowPiece> Find(RowRange range) const;
  // How many these are.
  size_t Count(RowRange range) const;

 private:
  std::vector<RowPiece> pieces_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_SAMPLE_ROW_PIECES_H_
