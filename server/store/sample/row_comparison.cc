#include "server/store/sample/row_comparison.h"

#include "absl/strings/str_cat.h"
#include "proto/wire/block/merge.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

int64_t CountIn(const Geometry& geometry, const BlockView& a, const BlockView& b, RowRange rows) {
  return CountDifferingRows(geometry, {a, rows}, {b, rows});
}

// Requires that at least one row of `rows` differs.
int64_t FirstDifferingRow(const Geometry& geometry, const BlockView& a, const BlockView& b, RowRange rows) {
  while (rows.size() > 1) {
    const RowRange front = RowRange::OfSize(rows.begin, rows.size() / 2);
    rows = CountIn(geometry, a, b, front) > 0 ? front : RowRange{front.end, rows.end};
  }
  return rows.begin;
}

absl::Status CheckStored(const Geometry& geometry, const BlockView& block) {
  absl::Status crc = CheckCrc(geometry, block);
  if (crc.ok()) return crc;
  ErrorDetail detail = GetErrorDetail(crc).value_or(ErrorDetail{});
  detail.reason = Reason::kChecksum;
  return MakeError(absl::StatusCode::kDataLoss,
                   absl::StrCat("stored rows ", ToString(block.rows), " are damaged: ", crc.message()), detail);
}

}  // namespace

absl::StatusOr<RowDifferences> CompareRows(const Geometry& geometry, const RowPieces& stored,
                                           absl::Span<const Block> blocks, RowRange range) {
  RowDifferences differences;
  for (const Block& block : blocks) {
    for (const RowPiece& piece : stored.Find(Intersect(block.rows, range))) {
      const absl::StatusOr<LoadedBlock> loaded = Load(piece.stored);
      if (!loaded.ok()) return loaded.status();
      const BlockView& kept = loaded->view;
      const int64_t rows = CountIn(geometry, kept, block.view(), piece.rows);
      if (rows == 0) continue;
      if (absl::Status status = CheckStored(geometry, kept); !status.ok()) return status;
      if (differences.rows == 0) {
        differences.first_row = FirstDifferingRow(geometry, kept, block.view(), piece.rows);
      }
      differences.rows += rows;
    }
  }
  return differences;
}

}  // namespace routing_replay::server
