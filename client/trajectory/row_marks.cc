#include "client/trajectory/row_marks.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "proto/wire/block/cut.h"
#include "proto/wire/buffer.h"

namespace routing_replay::client {
namespace {

// Goes on with the digests of the block's rows, layer by layer.
void DigestBlock(const Geometry& geometry, const Block& block, RowMark* marks) {
  const int64_t rows = block.rows.size();
  Buffer decoded;
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    const LayerRouting& layer = geometry.layer(ordinal);
    const auto row_bytes = static_cast<size_t>(layer.top_k) * layer.id_bytes();
    absl::Span<const uint8_t> ids = block.view().plane(geometry, ordinal);
    if (block.codec != Codec::kRaw) {
      decoded = Buffer(rows * row_bytes);
      DecodeCut(geometry, ordinal, block.codec, 0, rows, ids, decoded.span());
      ids = decoded.span();
    }
    for (int64_t row = 0; row < rows; ++row) {
      marks[row].digest = XXH3_64bits_withSeed(ids.data() + row * row_bytes, row_bytes, marks[row].digest);
    }
  }
}

}  // namespace

std::vector<RowMark> MarkRows(const Geometry& geometry, const DecodedRows& rows) {
  std::vector<RowMark> marks(rows.rows.size());
  for (const Block& block : rows.blocks) {
    RowMark* const first = marks.data() + (block.rows.begin - rows.rows.begin);
    for (int64_t row = 0; row < block.rows.size(); ++row) first[row].kind = RowMark::Kind::kRecorded;
    DigestBlock(geometry, block, first);
  }
  return marks;
}

}  // namespace routing_replay::client
