#include "proto/wire/payload/tensor_payload.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/id_check.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/tensor_view.h"
#include "proto/wire/payload/tile.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

absl::Status InvalidAt(Reason reason, absl::string_view field, absl::string_view what, std::optional<int64_t> row = {},
                       std::optional<int32_t> layer = {}) {
  ErrorDetail detail{.reason = reason, .field = std::string(field)};
  detail.row = row;
  detail.layer = layer;
  std::string where = std::string(field);
  if (row) absl::StrAppend(&where, ": row ", *row);
  if (layer) absl::StrAppend(&where, row ? ", layer " : ": layer ", *layer);
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(where, ": ", what), detail);
}

absl::Status WrongAxis(const Geometry& geometry, int64_t layers, absl::string_view expected) {
  return InvalidAt(Reason::kShape, "append.tensor.shape",
                   absl::StrCat("layer axis of ", layers, ", not ", expected, " (", geometry.DebugString(), ")"));
}

absl::StatusOr<std::vector<int32_t>> ExplicitColumns(const Geometry& geometry, const std::vector<int32_t>& layer_ids,
                                                     int64_t layers) {
  if (static_cast<int64_t>(layer_ids.size()) != layers) {
    return InvalidAt(Reason::kShape, "append.tensor.layer_ids",
                     absl::StrCat(layer_ids.size(), " ids for a layer axis of ", layers));
  }
  std::vector<int32_t> columns(geometry.num_moe_layers(), -1);
  std::vector<bool> named(geometry.num_layers(), false);
  for (size_t column = 0; column < layer_ids.size(); ++column) {
    const int32_t id = layer_ids[column];
    if (id < 0 || id >= geometry.num_layers()) {
      return InvalidAt(Reason::kField, "append.tensor.layer_ids",
                       absl::StrCat("is not in [0, ", geometry.num_layers(), ")"), std::nullopt, id);
    }
    if (named[id]) return InvalidAt(Reason::kField, "append.tensor.layer_ids", "occurs twice", std::nullopt, id);
    named[id] = true;
    if (const auto ordinal = geometry.FindOrdinal(id)) columns[*ordinal] = static_cast<int32_t>(column);
  }
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const int32_t id = geometry.layer(i).layer_id;
    if (columns[i] < 0) return InvalidAt(Reason::kField, "append.tensor.layer_ids", "is missing", std::nullopt, id);
  }
  return columns;
}

// MoE layers that lie side by side in the tensor and have the same E and width: they are narrowed and checked together.
struct ColumnRun {
  int64_t first_element = 0;  // Offset within a row of the tensor.
  int64_t elements = 0;
  int64_t first_byte = 0;  // Offset within a row of narrowed ids.
  LayerRouting layer;      // That of the first layer.
};

// Consecutive rows inside one window, and where their elements start.
struct Piece {
  RowRange rows;           // Absolute.
  int64_t first_slot = 0;  // Row of the tensor.
};

std::vector<RowRange> SplitAt(RowRange range, absl::Span<const int64_t> cuts) {
  std::vector<RowRange> parts;
  for (auto cut = std::upper_bound(cuts.begin(), cuts.end(), range.begin); cut != cuts.end() && *cut < range.end;
       ++cut) {
    parts.push_back({range.begin, *cut});
    range.begin = *cut;
  }
  parts.push_back(range);
  return parts;
}

class Decoder {
 public:
  Decoder(const Geometry& geometry, const TensorView& tensor, std::vector<int32_t> columns,
          const DecodeOptions& options)
      : geometry_(geometry), tensor_(tensor), columns_(std::move(columns)), options_(options) {
    MakeRuns();
    MakeTileColumns();
    if (!in_place_) scratch_ = Buffer(options.block_rows * geometry.raw_row_bytes());
  }

  absl::StatusOr<DecodedRows> Decode(RowRange rows);

 private:
  void MakeRuns();
  void MakeTileColumns();
  absl::Status DecodePiece(const Piece& piece, DecodedRows& out);
  bool NarrowPiece(const Piece& piece);
  uint64_t NarrowRun(const ColumnRun& run, const uint8_t* from, int64_t first_row, int64_t rows);
  const uint8_t* TensorRow(int64_t slot) const { return tensor_.elements.data() + slot * tensor_row_bytes(); }
  int64_t tensor_row_bytes() const { return tensor_.row_elements() * DTypeBytes(tensor_.dtype); }
  absl::Status FindMissingRows(const Piece& piece, std::vector<RowRange>& missing) const;
  absl::Status EncodeRun(const Piece& piece, RowRange rows, DecodedRows& out) const;
  absl::Status Explain(const Piece& piece, RowRange rows, int32_t ordinal, const IdFault& fault) const;
  void TileRows(const Piece& piece, RowRange rows, Block& block) const;
  bool IsZeroThroughout(int32_t ordinal) const;
  int64_t Id(int64_t slot, int32_t ordinal, int32_t k) const {
    return ElementAt(tensor_.dtype, tensor_.elements.data(),
                     slot * tensor_.row_elements() + columns_[ordinal] * tensor_.top_k + k);
  }

  const Geometry& geometry_;
  const TensorView& tensor_;
  const std::vector<int32_t> columns_;
  const DecodeOptions& options_;
  std::vector<ColumnRun> runs_;
  // The tensor's elements are already unsigned ids of every layer's width: rows are tiled without a copy.
  bool in_place_ = false;
  Buffer scratch_;                        // Otherwise: narrowed rows of the current piece, [rows][raw_row_bytes].
  std::vector<TileColumn> tile_columns_;  // By ordinal; planes are set per block.
};

void Decoder::MakeRuns() {
  int64_t first_byte = 0;
  for (int32_t i = 0; i < geometry_.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry_.layer(i);
    const int64_t first_element = columns_[i] * tensor_.top_k;
    const bool continues = !runs_.empty() && runs_.back().layer.num_experts == layer.num_experts &&
                           runs_.back().first_element + runs_.back().elements == first_element;
    if (!continues) runs_.push_back({.first_element = first_element, .first_byte = first_byte, .layer = layer});
    runs_.back().elements += layer.top_k;
    first_byte += static_cast<int64_t>(layer.top_k) * layer.id_bytes();
  }
}

absl::StatusOr<DecodedRows> Decoder::Decode(RowRange rows) {
  DecodedRows out{.rows = rows};
  int64_t slot = 0;
  for (RowRange gap : Subtract(rows, options_.unrecorded)) {
    for (RowRange window : SplitAtWindows(gap, options_.block_rows)) {
      for (RowRange piece : SplitAt(window, options_.cuts)) {
        if (absl::Status status = DecodePiece({piece, slot}, out); !status.ok()) return status;
        slot += piece.size();
      }
    }
  }
  out.unrecorded.insert(out.unrecorded.end(), options_.unrecorded.begin(), options_.unrecorded.end());
  Normalize(out.unrecorded);
  return out;
}

absl::Status Decoder::DecodePiece(const Piece& piece, DecodedRows& out) {
  std::vector<RowRange> missing;
  // Ids that are tiled in place are not checked here: EncodeRun checks them in the planes.
  if (!in_place_ && !NarrowPiece(piece)) {
    if (absl::Status status = FindMissingRows(piece, missing); !status.ok()) return status;
  }
  for (RowRange run : Subtract(piece.rows, missing)) {
    if (absl::Status status = EncodeRun(piece, run, out); !status.ok()) return status;
  }
  for (RowRange range : missing) AppendMerged(out.unrecorded, range);
  if (out.unrecorded.size() <= kMaxUnrecordedRanges) return absl::OkStatus();
  return InvalidAt(Reason::kLength, "payload",
                   absl::StrCat("more than ", kMaxUnrecordedRanges, " runs of rows marked missing (-1)"),
                   piece.rows.begin);
}

void Decoder::MakeTileColumns() {
  const int32_t element_bytes = DTypeBytes(tensor_.dtype);
  const auto same_width = [&](const LayerRouting& layer) { return layer.id_bytes() == element_bytes; };
  const bool is_unsigned = tensor_.dtype == DType::kU8 || tensor_.dtype == DType::kU16;
  in_place_ = is_unsigned && std::all_of(geometry_.layers().begin(), geometry_.layers().end(), same_width);
  for (int32_t i = 0; i < geometry_.num_moe_layers(); ++i) {
    tile_columns_.push_back(
        {.offset = in_place_ ? columns_[i] * tensor_.top_k * element_bytes : geometry_.plane_offset(i, 1, Codec::kRaw),
         .bytes = geometry_.plane_bytes(i, 1, Codec::kRaw)});
  }
}

// Narrows the rows of the piece for TileRows; false if an id is not below its layer's E.
bool Decoder::NarrowPiece(const Piece& piece) {
  const uint8_t* from = TensorRow(piece.first_slot);
  bool good = true;
  for (const ColumnRun& run : runs_) {
    uint64_t largest = 0;
    if (run.elements == tensor_.row_elements()) {
      largest = NarrowRun(run, from, 0, piece.rows.size());
    } else {
      for (int64_t row = 0; row < piece.rows.size(); ++row) largest = std::max(largest, NarrowRun(run, from, row, 1));
    }
    good = good && largest < static_cast<uint64_t>(run.layer.num_experts);
  }
  return good;
}

// The largest id of the run in `rows` rows of the piece, starting at `from`. More than one row only if the run covers
// the whole row.
uint64_t Decoder::NarrowRun(const ColumnRun& run, const uint8_t* from, int64_t first_row, int64_t rows) {
  from += first_row * tensor_row_bytes() + run.first_element * DTypeBytes(tensor_.dtype);
  return NarrowIds(tensor_.dtype, from, rows * run.elements, run.layer.id_bytes(),
                   scratch_.data() + first_row * geometry_.raw_row_bytes() + run.first_byte);
}

// Called if an id of the piece is out of range: finds the rows that are −1 throughout, or the first fault.
absl::Status Decoder::FindMissingRows(const Piece& piece, std::vector<RowRange>& missing) const {
  for (int64_t row = piece.rows.begin; row < piece.rows.end; ++row) {
    const int64_t slot = piece.first_slot + row - piece.rows.begin;
    int64_t marked = 0;
    std::optional<int32_t> first_marked, first_bad;
    int64_t bad_id = 0;
    for (int32_t i = 0; i < geometry_.num_moe_layers(); ++i) {
      const LayerRouting& layer = geometry_.layer(i);
      for (int32_t k = 0; k < layer.top_k; ++k) {
        const int64_t id = Id(slot, i, k);
        if (id == -1) {
          ++marked;
          if (!first_marked) first_marked = layer.layer_id;
        } else if ((id < 0 || id >= layer.num_experts) && !first_bad) {
          first_bad = layer.layer_id;
          bad_id = id;
        }
      }
    }
    if (first_bad) {
      return InvalidAt(Reason::kIdRange, "payload",
                       absl::StrCat("expert id ", bad_id, " is not in [0, ",
                                    geometry_.layer(*geometry_.FindOrdinal(*first_bad)).num_experts, ")"),
                       row, first_bad);
    }
    if (marked == geometry_.ids_per_row()) {
      AppendMerged(missing, RowRange::OfSize(row, 1));
    } else if (marked > 0) {
      return InvalidAt(Reason::kPartialRow, "payload", "only part of the row is marked missing (-1)", row,
                       first_marked);
    }
  }
  return absl::OkStatus();
}

absl::Status Decoder::EncodeRun(const Piece& piece, RowRange rows, DecodedRows& out) const {
  Block block;
  block.rows = rows;
  block.bytes = Buffer(geometry_.block_bytes(rows.size(), Codec::kRaw));
  TileRows(piece, rows, block);
  for (int32_t i = 0; i < geometry_.num_moe_layers(); ++i) {
    const uint8_t* plane = block.bytes.data() + geometry_.plane_offset(i, rows.size(), Codec::kRaw);
    const LayerRouting& layer = geometry_.layer(i);
    const auto bytes = static_cast<size_t>(geometry_.plane_bytes(i, rows.size(), Codec::kRaw));
    const auto fault = FindIdFault(layer, {plane, bytes}, rows.size(), /*duplicates=*/true);
    if (fault) return Explain(piece, rows, i, *fault);
  }
  if (options_.codec == Codec::kRaw) {
    ComputeCrc(geometry_, block);
  } else {
    block = Transcode(geometry_, block.view(), options_.codec);
  }
  out.blocks.push_back(std::move(block));
  return absl::OkStatus();
}

// Out-of-range ids are reported first, wherever they are: with them the other checks mean little.
absl::Status Decoder::Explain(const Piece& piece, RowRange rows, int32_t ordinal, const IdFault& fault) const {
  std::vector<RowRange> missing;
  if (absl::Status status = FindMissingRows(piece, missing); !status.ok()) return status;
  const int32_t layer_id = geometry_.layer(ordinal).layer_id;
  if (IsZeroThroughout(ordinal)) {
    return InvalidAt(
        Reason::kAllZeroLayer, "payload",
        "zero in every row: the engine's capture is broken, its pipeline stages were not merged, or it does not "
        "capture hash layers (DeepSeek-V4 on SGLang): then make the geometry with hash_layers=False",
        std::nullopt, layer_id);
  }
  return InvalidAt(Reason::kDuplicateId, "payload", absl::StrCat("expert id ", fault.id, " occurs twice"),
                   rows.begin + fault.row, layer_id);
}

void Decoder::TileRows(const Piece& piece, RowRange rows, Block& block) const {
  std::vector<TileColumn> columns = tile_columns_;
  for (int32_t i = 0; i < geometry_.num_moe_layers(); ++i) {
    columns[i].plane = block.bytes.data() + geometry_.plane_offset(i, rows.size(), Codec::kRaw);
  }
  const int64_t first = rows.begin - piece.rows.begin;
  if (in_place_) {
    Tile(TensorRow(piece.first_slot + first), tensor_row_bytes(), rows.size(), columns);
  } else {
    const int64_t stride = geometry_.raw_row_bytes();
    Tile(scratch_.data() + first * stride, stride, rows.size(), columns);
  }
}

bool Decoder::IsZeroThroughout(int32_t ordinal) const {
  for (int64_t slot = 0; slot < tensor_.rows; ++slot) {
    for (int32_t k = 0; k < geometry_.layer(ordinal).top_k; ++k) {
      const int64_t id = Id(slot, ordinal, k);
      if (id != 0 && id != -1) return false;
    }
  }
  return true;
}

absl::Status CheckTopK(const Geometry& geometry, int64_t top_k) {
  if (top_k == geometry.max_top_k()) return absl::OkStatus();
  return InvalidAt(Reason::kShape, "append.tensor.shape",
                   absl::StrCat("K axis of ", top_k, ", not ", geometry.max_top_k()));
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> MoeColumns(const Geometry& geometry, const TensorDescription& description,
                                                int64_t layers) {
  const bool is_all = layers == geometry.num_layers();
  const bool is_moe = layers == geometry.num_moe_layers();
  LayerBasis basis = description.layer_basis;
  if (basis != LayerBasis::kExplicit && !description.layer_ids.empty()) {
    return InvalidAt(Reason::kField, "append.tensor.layer_ids", "given without layer_basis EXPLICIT");
  }
  if (basis == LayerBasis::kUnspecified) {
    if (!is_all && !is_moe) return WrongAxis(geometry, layers, "all layers or all MoE layers");
    basis = is_all ? LayerBasis::kAllLayers : LayerBasis::kMoeLayers;
  }
  if (basis == LayerBasis::kExplicit) return ExplicitColumns(geometry, description.layer_ids, layers);
  std::vector<int32_t> columns(geometry.num_moe_layers());
  if (basis == LayerBasis::kMoeLayers) {
    if (!is_moe) return WrongAxis(geometry, layers, "all MoE layers");
    std::iota(columns.begin(), columns.end(), 0);
  } else {
    if (!is_all) return WrongAxis(geometry, layers, "all layers");
    for (size_t i = 0; i < columns.size(); ++i) columns[i] = geometry.layer(static_cast<int32_t>(i)).layer_id;
  }
  return columns;
}

absl::StatusOr<DecodedRows> DecodeTensor(const Geometry& geometry, const TensorDescription& description,
                                         absl::Span<const uint8_t> payload, const DecodeOptions& options) {
  auto tensor = OpenTensor(description, payload, options.max_payload_bytes);
  if (!tensor.ok()) return tensor.status();
  if (options.take) {
    if (absl::Status status = TakeSlots(*options.take, *tensor); !status.ok()) return status;
  }
  if (options.ids_and_weights) {
    if (absl::Status status = KeepIds(*tensor); !status.ok()) return status;
  }
  auto columns = MoeColumns(geometry, description, tensor->layers);
  if (!columns.ok()) return columns.status();
  if (absl::Status status = CheckTopK(geometry, tensor->top_k); !status.ok()) return status;
  // Checked before the rows are added up: very large ends would overflow.
  if (absl::Status status = CheckNormal(options.unrecorded, {0, kMaxRows}); !status.ok()) {
    return InvalidAt(Reason::kField, "append.unrecorded", status.message());
  }
  const int64_t rows = tensor->rows + TotalRows(options.unrecorded);
  if (options.expected_rows && *options.expected_rows != rows) {
    return InvalidAt(Reason::kRowCount, "append.rows",
                     absl::StrCat(*options.expected_rows, " rows declared, the tensor has ", tensor->rows, " and ",
                                  TotalRows(options.unrecorded), " are unrecorded"));
  }
  if (options.row_start < 0 || options.row_start > kMaxRows - rows) {
    return InvalidAt(Reason::kRowCount, "append.row_start", absl::StrCat("rows past the limit of ", kMaxRows));
  }
  const RowRange range = RowRange::OfSize(options.row_start, rows);
  if (absl::Status status = CheckNormal(options.unrecorded, range); !status.ok()) {
    return InvalidAt(Reason::kField, "append.unrecorded", status.message());
  }
  return Decoder(geometry, *tensor, *std::move(columns), options).Decode(range);
}

}  // namespace wire
}  // namespace routing_replay
