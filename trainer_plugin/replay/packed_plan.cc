#include "routing_replay/trainer/packed_plan.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/replay/packed_realign.h"
#include "trainer_plugin/replay/staged_cut.h"

namespace routing_replay::trainer {
namespace {

int64_t Aligned(int64_t bytes) { return RoundUp(bytes, kPackedPlanAlignment); }

// Calls `body(slot, first bit of the copy in the staging buffer)` for each layer of the copy's piece.
template <typename Body>
void ForEachCut(const BufferLayout& layout, const RealignPlan& plan, const RealignCopy& copy, Body&& body) {
  const StagedPiece& piece = plan.pieces[copy.piece];
  int64_t offset = piece.offset;
  for (int32_t slot = piece.layer_begin; slot < piece.layer_begin + piece.layer_count; ++slot) {
    const int64_t row_bits = layout.geometry().row_bits(layout.ordinal(slot), piece.codec);
    body(slot, offset * 8 + piece.bit_offset + copy.first_row * row_bits);
    offset += CutBytes(layout, piece, slot);
  }
}

int64_t CountCopies(const BufferLayout& layout, const RealignPlan& plan) {
  int64_t count = 0;
  for (const RealignCopy& copy : plan.copies) {
    const StagedPiece& piece = plan.pieces[copy.piece];
    for (int32_t i = 0; i < piece.layer_count; ++i) {
      count += UnitsOf(copy.rows * layout.layer(piece.layer_begin + i).top_k, kUnitIds);
    }
  }
  return count;
}

PackedHeader MakeHeader(const BufferLayout& layout, const RealignPlan& plan) {
  PackedHeader header{.num_copies = CountCopies(layout, plan),
                      .num_fills = static_cast<int64_t>(plan.fills.size()),
                      .num_rows = layout.rows(),
                      .num_layers = layout.num_layers(),
                      .ep_size = layout.ep_size()};
  header.copies_offset = Aligned(sizeof(PackedHeader) + header.num_layers * sizeof(PackedLayer));
  header.fills_offset = Aligned(header.copies_offset + header.num_copies * sizeof(PackedCopy));
  header.states_offset = Aligned(header.fills_offset + header.num_fills * sizeof(PackedFill));
  return header;
}

int64_t BytesOf(const PackedHeader& header) { return header.states_offset + header.num_rows; }

// The units of one copy in one layer.
PackedCopy* AddCopies(const BufferLayout& layout, const RealignPlan& plan, const RealignCopy& copy, int32_t slot,
                      int64_t first_bit, PackedCopy* out) {
  const LayerRouting& layer = layout.layer(slot);
  const int32_t id_bits = layout.geometry().id_bits(layout.ordinal(slot), plan.pieces[copy.piece].codec);
  const int64_t target = layout.slab_offset(slot) + copy.local_row * layout.row_bytes(slot);
  const int64_t ids = copy.rows * layer.top_k;
  for (int64_t first = 0; first < ids; first += kUnitIds) {
    *out++ = {.first_bit = first_bit + first * id_bits,
              .target = target + first * layer.id_bytes(),
              .ids = static_cast<int32_t>(std::min<int64_t>(kUnitIds, ids - first)),
              .id_bits = static_cast<int16_t>(id_bits),
              .id_bytes = static_cast<int16_t>(layer.id_bytes())};
  }
  return out;
}

}  // namespace

PackedPlanSize SizeOfPackedPlan(const BufferLayout& layout, const RealignPlan& plan) {
  const PackedHeader header = MakeHeader(layout, plan);
  return {.bytes = BytesOf(header), .units = NumUnits(header)};
}

absl::Status PackPlan(const BufferLayout& layout, const RealignPlan& plan, absl::Span<uint8_t> out) {
  const PackedHeader header = MakeHeader(layout, plan);
  const bool aligned = reinterpret_cast<uintptr_t>(out.data()) % kPackedPlanAlignment == 0;
  if (!aligned || static_cast<int64_t>(out.size()) < BytesOf(header)) {
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("realign.packed_plan: needs ", BytesOf(header), " bytes on a multiple of ",
                                  kPackedPlanAlignment, ", has ", out.size()),
                     {.reason = Reason::kLength, .field = "realign.packed_plan"});
  }
  std::memcpy(out.data(), &header, sizeof(header));
  auto* layers = reinterpret_cast<PackedLayer*>(out.data() + sizeof(header));
  for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
    const LayerRouting& layer = layout.layer(slot);
    layers[slot] = {.slab_offset = layout.slab_offset(slot),
                    .num_experts = layer.num_experts,
                    .top_k = layer.top_k,
                    .id_bytes = layer.id_bytes(),
                    .ordinal = layout.ordinal(slot)};
  }
  auto* copies = reinterpret_cast<PackedCopy*>(out.data() + header.copies_offset);
  for (const RealignCopy& copy : plan.copies) {
    ForEachCut(layout, plan, copy, [&](int32_t slot, int64_t first_bit) {
      copies = AddCopies(layout, plan, copy, slot, first_bit, copies);
    });
  }
  auto* fills = reinterpret_cast<PackedFill*>(out.data() + header.fills_offset);
  for (const RealignFill& fill : plan.fills) {
    *fills++ = {static_cast<int32_t>(fill.local_row), static_cast<int32_t>(fill.ordinal)};  // Below kMaxLocalRows.
  }
  if (!plan.states.empty()) std::memcpy(out.data() + header.states_offset, plan.states.data(), plan.states.size());
  return absl::OkStatus();
}

void RealignPacked(const uint8_t* packed, const uint8_t* staging, uint8_t* indices, RowState* states) {
  PackedHeader header;
  std::memcpy(&header, packed, sizeof(header));
  for (int64_t unit = 0; unit < NumUnits(header); ++unit) {
    for (int32_t lane = 0; lane < kUnitLanes; ++lane) RunUnit(lane, unit, packed, staging, indices, states);
  }
}

}  // namespace routing_replay::trainer
