// The recorded rows of one sample in memory: an ascending list of pieces, each a range of rows of a counted block.
//
//   window 0              window 1              window 2 (open)
//   [ one block        ]  [ block ][ block  ]   [ piece ][ piece ]        gaps are unrecorded rows
//
// Blocks are immutable once stored. Several samples (forks) and readers may hold the same block; its bytes go back to
// the budget with the last of them.
#ifndef SERVER_STORE_MEMORY_ROW_PIECES_H_
#define SERVER_STORE_MEMORY_ROW_PIECES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/block/block.h"
#include "routing_replay/wire/geometry.h"
#include "server/store/kept_block.h"
#include "server/store/memory/stored_charge.h"

namespace routing_replay {

class StoredBlock : public KeptBlock {
 public:
  StoredBlock(Block b, StoredCharge c)
      : KeptBlock(b.rows, b.codec), block(std::move(b)), cost(c.bytes()), charge(std::move(c)) {}

  absl::StatusOr<LoadedBlock> Load() const override { return LoadedBlock{shared_from_this(), block.view()}; }

  const Block block;
  const int64_t cost;
  StoredCharge charge;  // Of `cost` bytes. Only a sole holder takes it away, only to replace the block.
};

// What a block of `rows` rows in `codec` costs: bytes, CRCs and the fixed overhead of keeping it.
int64_t StoredBlockCost(const Geometry& geometry, int64_t rows, Codec codec);

struct RowPiece {
  std::shared_ptr<StoredBlock> stored;
  RowRange rows;        // Inside stored->rows().
  bool shared = false;  // Came with a prefix: charged to the sample that it came from.

  // Nobody else can reach the block, now or later, unless through this piece.
  bool exclusive() const { return stored.use_count() == 1; }
};

// A list of pieces. Move-only. Not thread-safe. What it hands out is destroyed by the caller, outside of locks.
class RowPieces {
 public:
  RowPieces() = default;
  RowPieces(RowPieces&&) = default;
  RowPieces& operator=(RowPieces&&) = default;

  absl::Span<const RowPiece> all() const { return pieces_; }
  size_t size() const { return pieces_.size(); }
  const RowPiece& operator[](size_t i) const { return pieces_[i]; }
  // Index of the first piece that ends after `row`; size() if there is none.
  size_t FirstEndingAfter(int64_t row) const;
  // Bytes charged for the pieces that are not shared.
  int64_t charged_bytes() const { return charged_bytes_; }
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

 private:
  std::vector<RowPiece> pieces_;
  int64_t charged_bytes_ = 0;
};

}  // namespace routing_replay

#endif  // SERVER_STORE_MEMORY_ROW_PIECES_H_
