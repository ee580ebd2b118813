#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/cut.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/filler.h"
#include "trainer_plugin/replay/staged_cut.h"

namespace routing_replay::trainer {
namespace {

absl::Status CheckSize(absl::string_view field, int64_t size, int64_t wanted) {
  if (size == wanted) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument,
                   absl::StrCat("realign.", field, ": ", size, " elements, not ", wanted),
                   {.reason = Reason::kLength, .field = absl::StrCat("realign.", field)});
}

// Decodes `copy`'s rows out of one cut of its piece: a cut of a cut.
void CopyRows(const BufferLayout& layout, const StagedPiece& piece, const RealignCopy& copy, int32_t slot,
              absl::Span<const uint8_t> cut, absl::Span<uint8_t> slab) {
  const Geometry& geometry = layout.geometry();
  const int32_t ordinal = layout.ordinal(slot);
  const int64_t first_bit = piece.bit_offset + copy.first_row * geometry.row_bits(ordinal, piece.codec);
  const int32_t bit_offset = static_cast<int32_t>(first_bit % 8);
  const int64_t bytes = geometry.cut_bytes_at(ordinal, bit_offset, copy.rows, piece.codec);
  const int64_t row_bytes = layout.row_bytes(slot);
  DecodeCut(geometry, ordinal, piece.codec, bit_offset, copy.rows, cut.subspan(first_bit / 8, bytes),
            slab.subspan(copy.local_row * row_bytes, copy.rows * row_bytes));
}

void CopyPieces(const BufferLayout& layout, const RealignPlan& plan, absl::Span<const uint8_t> staging,
                absl::Span<uint8_t> indices) {
  for (const RealignCopy& copy : plan.copies) {
    const StagedPiece& piece = plan.pieces[copy.piece];
    int64_t offset = piece.offset;
    for (int32_t slot = piece.layer_begin; slot < piece.layer_begin + piece.layer_count; ++slot) {
      const int64_t bytes = CutBytes(layout, piece, slot);
      CopyRows(layout, piece, copy, slot, staging.subspan(offset, bytes), layout.slab(indices, slot));
      offset += bytes;
    }
  }
}

void WriteFiller(const BufferLayout& layout, const RealignPlan& plan, absl::Span<uint8_t> indices) {
  for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
    const LayerRouting& layer = layout.layer(slot);
    const FillerShape shape{layer.num_experts, layer.top_k, layout.ep_size()};
    uint8_t* slab = layout.slab(indices, slot).data();
    for (const RealignFill& fill : plan.fills) {
      for (int32_t k = 0; k < layer.top_k; ++k) {
        StoreId(slab, layer.id_bytes(), fill.local_row * layer.top_k + k,
                FillerId(shape, fill.ordinal, k, layout.ordinal(slot)));
      }
    }
  }
}

}  // namespace

absl::Status Realign(const BufferLayout& layout, const RealignPlan& plan, absl::Span<const uint8_t> staging,
                     absl::Span<uint8_t> indices, absl::Span<RowState> states) {
  for (const absl::Status& status : {
           CheckSize("staging", static_cast<int64_t>(staging.size()), plan.staging_bytes),
           CheckSize("indices", static_cast<int64_t>(indices.size()), layout.bytes()),
           CheckSize("states", static_cast<int64_t>(states.size()), layout.rows()),
           CheckSize("plan.states", static_cast<int64_t>(plan.states.size()), layout.rows()),
       }) {
    if (!status.ok()) return status;
  }
  CopyPieces(layout, plan, staging, indices);
  WriteFiller(layout, plan, indices);
  std::copy(plan.states.begin(), plan.states.end(), states.begin());
  return absl::OkStatus();
}

}  // namespace routing_replay::trainer
