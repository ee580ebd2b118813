#include "server/store/sample/row_pieces.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace routing_replay::server {
size_t FirstEndingAfter(absl::Span<const RowPiece> pieces, int64_t row) {
  const auto first = std::partition_point(pieces.begin(), pieces.end(),
                                          [row](const RowPiece& piece) { return piece.rows.end <= row; });
  return first - pieces.begin();
}

int64_t RowPieces::charged_bytes() const {
  int64_t bytes = 0;
  for (const RowPiece& piece : pieces_) bytes += piece.shared ? 0 : piece.stored->cost();
  return bytes;
}

int64_t RowPieces::exclusive_bytes() const {
  int64_t bytes = 0;
  for (const RowPiece& piece : pieces_) bytes += piece.exclusive() ? piece.stored->cost() : 0;
  return bytes;
}

void RowPieces::TakeExclusiveCharges(ByteReservation& pool) {
  for (RowPiece& piece : pieces_) {
    if (piece.exclusive()) pool.Merge(piece.stored->TakeCharge());
  }
}

void RowPieces::Append(RowPiece piece) { pieces_.push_back(std::move(piece)); }

std::vector<RowPiece> RowPieces::TakeFrom(size_t first) {
  std::vector<RowPiece> taken(std::make_move_iterator(pieces_.begin() + first), std::make_move_iterator(pieces_.end()));
  pieces_.resize(first);
  return taken;
}

std::vector<RowPiece> RowPieces::Truncate(int64_t rows) {
  std::vector<RowPiece> removed = TakeFrom(FirstEndingAfter(rows));
  if (!removed.empty() && removed.front().rows.begin < rows) {
    Append({removed.front().stored, {removed.front().rows.begin, rows}, removed.front().shared});
  }
  return removed;
}

RowPieces RowPieces::Prefix(int64_t rows) const {
  RowPieces prefix;
  for (RowPiece& piece : Find({0, rows})) {
    piece.shared = true;
    prefix.Append(std::move(piece));
  }
  return prefix;
}

size_t RowPieces::Count(RowRange range) const {
  if (range.empty()) return 0;
  const size_t first = FirstEndingAfter(range.begin), last = FirstEndingAfter(range.end - 1);
  return last - first + (last < pieces_.size() && pieces_[last].rows.begin < range.end);
}

std::vector<RowPiece> RowPieces::Find(RowRange range) const {
  std::vector<RowPiece> found;
  if (range.empty()) return found;
  for (size_t i = FirstEndingAfter(range.begin); i < pieces_.size() && pieces_[i].rows.begin < range.end; ++i) {
    found.push_back({pieces_[i].stored, Intersect(pieces_[i].rows, range), pieces_[i].shared});
  }
  return found;
}

}  // namespace routing_replay::server
