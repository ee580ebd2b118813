// Realign: the layout of index buffers, the plan that checks staged pieces, its execution on the CPU, and its packing
// for a device.
#include "routing_replay/trainer/realign.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/block.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/layout/multiple.h"
#include "trainer_plugin/replay/compact_id.h"
#include "trainer_plugin/replay/packed_realign.h"

namespace routing_replay::trainer {

namespace {

absl::Status InvalidLayout(absl::string_view field, absl::string_view what, std::optional<int32_t> layer = {}) {
  return Invalid({.reason = Reason::kField, .field = absl::StrCat("layout.", field), .layer = layer}, what);
}

}  // namespace

absl::StatusOr<BufferLayout> BufferLayout::Create(const Geometry& geometry, const Options& options) {
  if (options.rows < 0 || options.rows > kMaxLocalRows) {
    return InvalidLayout("rows", absl::StrCat(options.rows, " is not in 0 … ", kMaxLocalRows));
  }
  if (options.ep_size < 1) return InvalidLayout("ep_size", absl::StrCat("must be at least 1, got ", options.ep_size));
  BufferLayout layout(geometry);
  layout.ordinals_ = options.ordinals;
  layout.rows_ = options.rows;
  layout.ep_size_ = options.ep_size;
  for (const int32_t ordinal : options.ordinals) {
    const LayerRouting& layer = geometry.layer(ordinal);
    if (layer.num_experts % options.ep_size != 0) {
      return InvalidLayout("ep_size",
                           absl::StrCat(options.ep_size, " does not divide the ", layer.num_experts,
                                        " experts of layer ", layer.layer_id),
                           layer.layer_id);
    }
    layout.row_bytes_.push_back(geometry.plane_bytes(ordinal, 1, Codec::kRaw));
  }
  layout.offsets_.resize(layout.ordinals_.size());
  for (int32_t id_bytes : {2, 1}) {
    for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
      if (layout.layer(slot).id_bytes() != id_bytes) continue;
      layout.offsets_[slot] = layout.bytes_;
      layout.bytes_ += layout.slab_bytes(slot);
    }
  }
  return layout;
}

absl::Span<const uint8_t> BufferLayout::slab(absl::Span<const uint8_t> buffer, int32_t slot) const {
  return buffer.subspan(slab_offset(slot), slab_bytes(slot));
}

absl::Span<uint8_t> BufferLayout::slab(absl::Span<uint8_t> buffer, int32_t slot) const {
  return buffer.subspan(slab_offset(slot), slab_bytes(slot));
}

namespace {

// Size in bytes of the piece's cut for one slot.
int64_t CutBytes(const BufferLayout& layout, const StagedPiece& piece, int32_t slot) {
  return layout.geometry().cut_bytes_at(layout.ordinal(slot), piece.bit_offset, piece.rows.size(), piece.codec);
}

absl::Status InvalidRealign(Reason reason, absl::string_view field, absl::string_view what) {
  return Invalid(reason, absl::StrCat("realign.", field), what);
}

absl::Status CheckInput(const BufferLayout& layout, const RealignInput& input) {
  if (input.rows.size() != layout.rows()) {
    return InvalidRealign(Reason::kLength, "rows",
                          absl::StrCat("must be ", layout.rows(), ", got ", input.rows.size()));
  }
  if (input.rows.sequences().size() > input.unrecorded.size()) {
    return InvalidRealign(Reason::kField, "rows",
                          absl::StrCat("of sequence ", input.rows.sequences().size() - 1,
                                       " are shown, but there are only ", input.unrecorded.size(), " sequences"));
  }
  return absl::OkStatus();
}

// The rows of one sequence that must be delivered, and the pieces that deliver them.
struct SequenceWork {
  std::vector<ShownRows::Run> runs;  // The runs of ShownRows without the unrecorded rows.
  std::vector<int32_t> pieces;
};

// Sets the states of rows that are listed as unrecorded, adds these to `others`, and returns the remaining rows.
std::vector<SequenceWork> TakeOutUnrecorded(const RealignInput& input, RowPlan& plan, std::vector<int64_t>& others) {
  std::vector<SequenceWork> work(input.unrecorded.size());
  for (size_t i = 0; i < input.rows.sequences().size(); ++i) {
    const std::vector<ShownRows::Run>& runs = input.rows.sequences()[i].runs;
    const std::vector<RowRange>& holes = input.unrecorded[i];
    if (holes.empty()) work[i].runs = runs;
    for (size_t run = 0; run < runs.size() && !holes.empty(); ++run) {
      const auto& [rows, local_row] = runs[run];
      for (const RowRange part : Subtract(rows, holes)) {
        work[i].runs.push_back({part, local_row + part.begin - rows.begin});
      }
      for (const RowRange hole : Clip(holes, rows)) {
        for (int64_t row = hole.begin; row < hole.end; ++row) others.push_back(local_row + row - rows.begin);
        std::fill_n(plan.states.begin() + local_row + hole.begin - rows.begin, hole.size(), RowState::kUnrecorded);
      }
    }
  }
  return work;
}

// Returns the rows that the pieces of one sequence deliver for one slot, as a normal list.
std::vector<RowRange> FindDelivered(const RealignInput& input, const SequenceWork& sequence, int32_t slot) {
  std::vector<RowRange> delivered;
  for (int32_t index : sequence.pieces) {
    const StagedPiece& piece = input.pieces[index];
    if (slot >= piece.layer_begin && slot - piece.layer_begin < piece.layer_count) delivered.push_back(piece.rows);
  }
  Normalize(delivered);
  return delivered;
}

// Returns the rows that at least one of the runs shows, as a normal list.
std::vector<RowRange> FindNeeded(const SequenceWork& sequence) {
  std::vector<RowRange> needed;
  for (const ShownRows::Run& run : sequence.runs) needed.push_back(run.rows);
  Normalize(needed);
  return needed;
}

absl::Status CheckDelivered(const BufferLayout& layout, const RealignInput& input, const SequenceWork& sequence,
                            int32_t sequence_index) {
  const std::vector<RowRange> needed = FindNeeded(sequence);
  for (int32_t slot = 0; slot < layout.num_layers(); ++slot) {
    const std::vector<RowRange> delivered = FindDelivered(input, sequence, slot);
    for (RowRange range : needed) {
      const std::vector<RowRange> missing = Subtract(range, delivered);
      if (missing.empty()) continue;
      const int64_t row = missing.front().begin;
      const int32_t layer = layout.layer(slot).layer_id;
      return MakeError(absl::StatusCode::kFailedPrecondition,
                       absl::StrCat("realign: row ", row, " of sequence ", sequence_index,
                                    " is neither staged for layer ", layer, " nor declared unrecorded"),
                       {.reason = Reason::kNotCommitted, .field = "realign.pieces", .row = row, .layer = layer});
    }
  }
  return absl::OkStatus();
}

void AddCopies(const RealignInput& input, int32_t index, RealignPlan& plan) {
  const StagedPiece& piece = input.pieces[index];
  const std::vector<RowRange>& holes = input.unrecorded[piece.sequence];
  input.rows.ForEachPart(piece.sequence, piece.rows, [&](RowRange shown, int64_t local_row) {
    for (const RowRange part : Subtract(shown, holes)) {
      plan.copies.push_back({.piece = index,
                             .first_row = part.begin - piece.rows.begin,
                             .rows = part.size(),
                             .local_row = local_row + part.begin - shown.begin});
    }
  });
}

void FillLastRows(const RealignInput& input, RowPlan& plan) {
  const auto sequences = static_cast<int32_t>(std::min(input.last_rows.size(), input.unrecorded.size()));
  for (const auto& [local_row, row] : input.rows.others()) {
    if (row.state != RowState::kUnrecorded || row.sequence >= sequences || row.row != input.last_rows[row.sequence]) {
      continue;
    }
    const bool listed = !Clip(input.unrecorded[row.sequence], RowRange::OfSize(row.row, 1)).empty();
    if (!listed) plan.states[local_row] = RowState::kPad;
  }
}

// Puts the rows that take filler ids into `plan.fills`, pads first, and numbers them. `others`: the local rows that are
// not replayed, ascending.
void AddFills(const std::vector<int64_t>& others, RowPlan& plan) {
  plan.fills.reserve(others.size());
  const auto add = [&](RowState kind) {
    const size_t before = plan.fills.size();
    for (const int64_t row : others) {
      if (plan.states[row] == kind) plan.fills.push_back({row, static_cast<int64_t>(plan.fills.size())});
    }
    return static_cast<int64_t>(plan.fills.size() - before);
  };
  plan.pad_rows = add(RowState::kPad);
  plan.unrecorded_rows = add(RowState::kUnrecorded);
  add(RowState::kLive);
  plan.replayed_rows = static_cast<int64_t>(plan.states.size() - others.size());
}

}  // namespace

ShownRows::ShownRows(absl::Span<const LocalRow> row_map) {
  states_.reserve(row_map.size());
  const LocalRow* last = nullptr;  // The latest row of the map if it is replayed, else null.
  for (size_t i = 0; i < row_map.size(); ++i) {
    const LocalRow& row = row_map[i];
    const auto local_row = static_cast<int64_t>(i);
    states_.push_back(row.state);
    const LocalRow* const before = std::exchange(last, row.state == RowState::kReplayed ? &row : nullptr);
    if (last == nullptr) {
      others_.emplace_back(local_row, row);
      continue;
    }
    if (static_cast<size_t>(row.sequence) >= sequences_.size()) sequences_.resize(row.sequence + 1);
    std::vector<Run>& runs = sequences_[row.sequence].runs;
    const bool follows = before != nullptr && before->sequence == row.sequence && before->row + 1 == row.row;
    if (!follows) runs.push_back({RowRange::OfSize(row.row, 0), local_row});
    ++runs.back().rows.end;
  }
  for (auto& [runs, longest_run] : sequences_) {
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.rows.begin < b.rows.begin; });
    for (const Run& run : runs) longest_run = std::max(longest_run, run.rows.size());
  }
}

absl::StatusOr<RowPlan> PlanRows(const BufferLayout& layout, const RealignInput& input) {
  RR_RETURN_IF_ERROR(CheckInput(layout, input));
  RowPlan plan;
  plan.states = input.rows.states();
  std::vector<int64_t> others;
  for (const auto& [local_row, row] : input.rows.others()) others.push_back(local_row);
  std::vector<SequenceWork> work = TakeOutUnrecorded(input, plan, others);
  std::sort(others.begin(), others.end());
  for (size_t i = 0; i < input.pieces.size(); ++i) {
    work[input.pieces[i].sequence].pieces.push_back(static_cast<int32_t>(i));
  }
  for (size_t i = 0; i < work.size(); ++i) {
    RR_RETURN_IF_ERROR(CheckDelivered(layout, input, work[i], static_cast<int32_t>(i)));
  }
  FillLastRows(input, plan);
  AddFills(others, plan);
  return plan;
}

absl::StatusOr<RealignPlan> PlanRealign(const BufferLayout& layout, const RealignInput& input) {
  RR_ASSIGN_OR_RETURN(auto rows, PlanRows(layout, input));
  RealignPlan plan{std::move(rows)};
  plan.pieces.assign(input.pieces.begin(), input.pieces.end());
  for (size_t i = 0; i < input.pieces.size(); ++i) AddCopies(input, static_cast<int32_t>(i), plan);
  return plan;
}

namespace {

absl::Status CheckSize(absl::string_view field, int64_t size, int64_t wanted) {
  if (size == wanted) return absl::OkStatus();
  return InvalidRealign(Reason::kLength, field, absl::StrCat(size, " elements, not ", wanted));
}

// Decodes the rows of `copy` from one cut of its piece.
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

// Moves the rows of `copy` for all layers of its piece.
void CopyLayers(const BufferLayout& layout, const StagedPiece& piece, const RealignCopy& copy,
                absl::Span<const uint8_t> cuts, absl::Span<uint8_t> indices) {
  for (int32_t slot = piece.layer_begin; slot < piece.layer_begin + piece.layer_count; ++slot) {
    if (piece.codec == Codec::kRaw) {  // The usual case: a cut has about 2 KB, for which DecodeCut is slow.
      const int64_t row = layout.row_bytes(slot);
      std::memcpy(indices.data() + layout.slab_offset(slot) + copy.local_row * row, cuts.data() + copy.first_row * row,
                  copy.rows * row);
      cuts.remove_prefix(piece.rows.size() * row);
      continue;
    }
    const int64_t bytes = CutBytes(layout, piece, slot);
    CopyRows(layout, piece, copy, slot, cuts.first(bytes), layout.slab(indices, slot));
    cuts.remove_prefix(bytes);
  }
}

void WriteFiller(const BufferLayout& layout, const RowPlan& plan, absl::Span<uint8_t> indices) {
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
  RR_RETURN_IF_ERROR(CheckTargets(layout, indices, states));
  RR_RETURN_IF_ERROR(CheckSize("plan.states", static_cast<int64_t>(plan.states.size()), layout.rows()));
  for (const RealignCopy& copy : plan.copies) {
    const StagedPiece& piece = plan.pieces[copy.piece];
    CopyLayers(layout, piece, copy, staging.subspan(piece.offset), indices);
  }
  FinishRealign(layout, plan, indices, states);
  return absl::OkStatus();
}

void MovePiece(const BufferLayout& layout, const ShownRows& rows, const StagedPiece& piece,
               absl::Span<const uint8_t> bytes, absl::Span<uint8_t> indices) {
  rows.ForEachPart(piece.sequence, piece.rows, [&](RowRange part, int64_t local_row) {
    const RealignCopy copy{.first_row = part.begin - piece.rows.begin, .rows = part.size(), .local_row = local_row};
    CopyLayers(layout, piece, copy, bytes, indices);
  });
}

void FinishRealign(const BufferLayout& layout, const RowPlan& plan, absl::Span<uint8_t> indices,
                   absl::Span<RowState> states) {
  WriteFiller(layout, plan, indices);
  std::copy(plan.states.begin(), plan.states.end(), states.begin());
}

absl::Status CheckTargets(const BufferLayout& layout, absl::Span<uint8_t> indices, absl::Span<RowState> states) {
  RR_RETURN_IF_ERROR(CheckSize("indices", static_cast<int64_t>(indices.size()), layout.bytes()));
  return CheckSize("states", static_cast<int64_t>(states.size()), layout.rows());
}

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

// Writes the units of one copy in one layer.
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
    return InvalidRealign(Reason::kLength, "packed_plan",
                          absl::StrCat("needs ", BytesOf(header), " bytes on a multiple of ", kPackedPlanAlignment,
                                       ", has ", out.size()));
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

}  // namespace routing_replay::trainer
