#include "proto/wire/payload/tensor_payload.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/block/block.h"
#include "proto/wire/block/id_check.h"
#include "proto/wire/payload/narrow.h"
#include "proto/wire/payload/tensor_view.h"
#include "proto/wire/payload/tile.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

absl::Status InvalidAt(Reason reason, absl::string_view field, absl::string_view what, std::optional<int64_t> row = {},
                       std::optional<int32_t> layer = {}) {
  const std::string at_row = row ? absl::StrCat("row ", *row, layer ? ", " : ": ") : "";
  const std::string at_layer = layer ? absl::StrCat("layer ", *layer, ": ") : "";
  return Invalid({.reason = reason, .field = std::string(field), .row = row, .layer = layer},
                 absl::StrCat(at_row, at_layer, what));
}

absl::Status WrongAxis(const Geometry& geometry, int64_t layers, absl::string_view expected) {
  return InvalidAt(Reason::kShape, "append.tensor.shape",
                   absl::StrCat("layer axis of ", layers, ", must be ", expected, " (", geometry.DebugString(), ")"));
}

absl::StatusOr<std::vector<int32_t>> ExplicitColumns(const Geometry& geometry, const std::vector<int32_t>& layer_ids,
                                                     int64_t layers) {
  if (static_cast<int64_t>(layer_ids.size()) != layers) {
    return InvalidAt(Reason::kShape, "append.tensor.layer_ids",
                     absl::StrCat(layer_ids.size(), " layer ids for a layer axis of length ", layers));
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

// MoE layers that lie side by side in the tensor and have the same E and K: they are narrowed and tiled together.
struct LayerGroup {
  int32_t first = 0;  // Ordinal.
  int32_t layers = 0;
};

// Rows are narrowed and tiled in parts of about this many bytes, so that a part stays in the CPU's level-2 cache.
constexpr int64_t kPartBytes = 131072;
constexpr int64_t kCacheLine = 64;
constexpr int64_t kMinPartRows = 8, kMaxPartRows = 256;

// Consecutive rows inside one window, and where in the tensor they are.
struct Piece {
  RowRange rows;           // Absolute.
  int64_t first_slot = 0;  // The index of rows.begin in the tensor's first axis.
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
          const DecodeOptions& options);

  absl::StatusOr<DecodedRows> Decode(RowRange rows);

 private:
  absl::Status DecodePiece(const Piece& piece, DecodedRows& out);
  std::optional<Block> Encode(const Piece& piece);
  bool TileRows(const Piece& piece, uint8_t* raw);
  bool TilePart(const LayerGroup& group, const uint8_t* from, int64_t rows, absl::Span<uint8_t* const> planes);
  bool FinishPlane(int32_t ordinal, absl::Span<const uint8_t> ids, Block& block) const;
  absl::Status FindMissingRows(const Piece& piece, std::vector<RowRange>& missing) const;
  absl::Status ExplainDuplicate(const Piece& piece) const;
  bool IsZeroThroughout(int32_t ordinal) const;
  int64_t tensor_row_bytes() const { return tensor_.row_elements() * DTypeBytes(tensor_.dtype); }
  int64_t Id(int64_t slot, int32_t ordinal, int32_t k) const {
    return ElementAt(tensor_.dtype, tensor_.elements.data(),
                     slot * tensor_.row_elements() + columns_[ordinal] * tensor_.top_k + k);
  }

  const Geometry& geometry_;
  const TensorView& tensor_;
  const std::vector<int32_t> columns_;
  const DecodeOptions& options_;
  std::vector<LayerGroup> groups_;
  const int64_t part_rows_;
  std::vector<uint8_t*> planes_;  // Where the next part goes in each RAW plane of one block.
  Buffer scratch_;                // Narrowed rows of a part.
  Buffer raw_;                    // RAW planes of one block, if blocks are PACKED.
};

Decoder::Decoder(const Geometry& geometry, const TensorView& tensor, std::vector<int32_t> columns,
                 const DecodeOptions& options)
    : geometry_(geometry),
      tensor_(tensor),
      columns_(std::move(columns)),
      options_(options),
      part_rows_(std::clamp(kPartBytes / std::max<int64_t>(1, tensor_row_bytes()) / kMinPartRows * kMinPartRows,
                            kMinPartRows, kMaxPartRows)),
      planes_(geometry.num_moe_layers()),
      scratch_(part_rows_ * geometry.raw_row_bytes()) {
  for (int32_t i = 0; i < geometry.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry.layer(i);
    const bool continues = i > 0 && columns_[i] == columns_[i - 1] + 1 &&
                           layer.num_experts == geometry.layer(i - 1).num_experts &&
                           layer.top_k == geometry.layer(i - 1).top_k && layer.top_k == tensor.top_k;
    if (!continues) groups_.push_back({.first = i});
    ++groups_.back().layers;
  }
}

absl::StatusOr<DecodedRows> Decoder::Decode(RowRange rows) {
  DecodedRows out{.rows = rows};
  int64_t slot = 0;
  for (RowRange gap : Subtract(rows, options_.unrecorded)) {
    for (RowRange window : SplitAtWindows(gap, options_.block_rows)) {
      for (RowRange piece : SplitAt(window, options_.cuts)) {
        RR_RETURN_IF_ERROR(DecodePiece({piece, slot}, out));
        slot += piece.size();
      }
    }
  }
  out.unrecorded.insert(out.unrecorded.end(), options_.unrecorded.begin(), options_.unrecorded.end());
  Normalize(out.unrecorded);
  return out;
}

absl::Status Decoder::DecodePiece(const Piece& piece, DecodedRows& out) {
  if (std::optional<Block> block = Encode(piece)) {
    out.blocks.push_back(*std::move(block));
    return absl::OkStatus();
  }
  // An id is out of range or duplicated, or a row is marked missing. First looks for ids out of range in the whole
  // piece: they usually mean that the payload is wrong altogether, and then a duplicate is of no interest.
  std::vector<RowRange> missing;
  RR_RETURN_IF_ERROR(FindMissingRows(piece, missing));
  for (RowRange run : Subtract(piece.rows, missing)) {
    const Piece part{run, piece.first_slot + run.begin - piece.rows.begin};
    std::optional<Block> block = Encode(part);
    if (!block) return ExplainDuplicate(part);
    out.blocks.push_back(*std::move(block));
  }
  for (RowRange range : missing) AppendMerged(out.unrecorded, range);
  if (out.unrecorded.size() <= kMaxUnrecordedRanges) return absl::OkStatus();
  return InvalidAt(Reason::kLength, "payload",
                   absl::StrCat("must have at most ", kMaxUnrecordedRanges, " ranges of rows marked missing (-1)"),
                   piece.rows.begin);
}

// Returns the rows as a block, or nothing if an id is out of range or one row has the same id twice.
std::optional<Block> Decoder::Encode(const Piece& piece) {
  Block block;
  block.rows = piece.rows;
  block.codec = SmallerCodec(geometry_, piece.rows.size(), options_.codec);
  block.bytes = Buffer(geometry_.block_bytes(piece.rows.size(), block.codec));
  block.plane_crc32c.resize(geometry_.num_moe_layers());
  const int64_t rows = piece.rows.size();
  uint8_t* raw = block.bytes.data();
  if (block.codec != Codec::kRaw) {
    const auto size = static_cast<size_t>(geometry_.block_bytes(rows, Codec::kRaw));
    if (raw_.size() < size) raw_ = Buffer(size);
    raw = raw_.data();
  }
  if (!TileRows(piece, raw)) return std::nullopt;
  for (int32_t i = 0; i < geometry_.num_moe_layers(); ++i) {
    const absl::Span<const uint8_t> ids(raw + geometry_.plane_offset(i, rows, Codec::kRaw),
                                        geometry_.plane_bytes(i, rows, Codec::kRaw));
    if (!FinishPlane(i, ids, block)) return std::nullopt;
  }
  return block;
}

// Narrows and tiles the rows to RAW planes. False if an element does not fit in an id.
bool Decoder::TileRows(const Piece& piece, uint8_t* raw) {
  const int64_t rows = piece.rows.size();
  for (int32_t i = 0; i < geometry_.num_moe_layers(); ++i) {
    planes_[i] = raw + geometry_.plane_offset(i, rows, Codec::kRaw);
  }
  const bool tiles_in_place = DTypeBytes(tensor_.dtype) == geometry_.layer(0).id_bytes();
  const uint8_t* from = tensor_.elements.data() + piece.first_slot * tensor_row_bytes();
  for (int64_t row = 0; row < rows; row += part_rows_) {
    const int64_t part = std::min(part_rows_, rows - row), bytes = part * tensor_row_bytes();
    // Without narrowing, tiling reads the rows with large strides, which CPU prefetchers do not predict, so the next
    // part is prefetched by hand.
    const uint8_t* next = from + bytes;
    const int64_t next_bytes = tiles_in_place ? std::min(bytes, tensor_.elements.end() - next) : 0;
    for (int64_t at = 0; at < next_bytes; at += kCacheLine) __builtin_prefetch(next + at, 0, 2);
    for (const LayerGroup& group : groups_) {
      const absl::Span<uint8_t*> planes = absl::MakeSpan(planes_).subspan(group.first, group.layers);
      if (!TilePart(group, from, part, planes)) return false;
      const int64_t plane_bytes = part * geometry_.layer(group.first).top_k * geometry_.layer(group.first).id_bytes();
      for (uint8_t*& plane : planes) plane += plane_bytes;
    }
    from = next;
  }
  return true;
}

bool Decoder::TilePart(const LayerGroup& group, const uint8_t* from, int64_t rows, absl::Span<uint8_t* const> planes) {
  const LayerRouting& layer = geometry_.layer(group.first);
  const int32_t element_bytes = DTypeBytes(tensor_.dtype), id_bytes = layer.id_bytes();
  const int64_t layer_bytes = int64_t{layer.top_k} * id_bytes, stride = tensor_row_bytes();
  from += columns_[group.first] * tensor_.top_k * element_bytes;
  if (element_bytes == id_bytes) {
    Tile(from, stride, rows, layer_bytes, planes);
    return true;
  }
  const int64_t count = int64_t{group.layers} * layer.top_k;
  if (!NarrowIds(tensor_.dtype, from, stride, rows, count, id_bytes, scratch_.data())) return false;
  Tile(scratch_.data(), count * id_bytes, rows, layer_bytes, planes);
  return true;
}

// Checks and packs a plane and computes its CRC. Returns false if an id is out of range or one row has the same id
// twice.
bool Decoder::FinishPlane(int32_t ordinal, absl::Span<const uint8_t> ids, Block& block) const {
  const LayerRouting& layer = geometry_.layer(ordinal);
  const int64_t rows = block.rows.size();
  if (!IdsLegal(ids, layer.id_bytes(), layer.top_k, NarrowLimit(tensor_.dtype, layer.num_experts))) return false;
  const absl::Span<uint8_t> plane = block.bytes.span().subspan(geometry_.plane_offset(ordinal, rows, block.codec),
                                                               geometry_.plane_bytes(ordinal, rows, block.codec));
  if (block.codec != Codec::kRaw) EncodePlane(geometry_, ordinal, block.codec, rows, ids, plane);
  block.plane_crc32c[ordinal] = Crc32c(plane);
  return true;
}

// Called if an id of the piece may be out of range: finds the rows that are −1 throughout, or the first fault.
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

// Called if all ids of the piece are in range, but some row has the same id twice in one layer. Returns the error for
// the first such layer, and for the first such row in it.
absl::Status Decoder::ExplainDuplicate(const Piece& piece) const {
  for (int32_t i = 0; i < geometry_.num_moe_layers(); ++i) {
    const LayerRouting& layer = geometry_.layer(i);
    for (int64_t row = 0; row < piece.rows.size(); ++row) {
      for (int32_t k = 1; k < layer.top_k; ++k) {
        const int64_t id = Id(piece.first_slot + row, i, k);
        for (int32_t other = 0; other < k; ++other) {
          if (Id(piece.first_slot + row, i, other) != id) continue;
          if (IsZeroThroughout(i)) {
            return InvalidAt(
                Reason::kAllZeroLayer, "payload",
                "every id is 0: the engine's capture is broken, its pipeline stages were not merged, or it does not "
                "capture hash layers (DeepSeek-V4 on SGLang; if so, set hash_layers=False in the geometry)",
                std::nullopt, layer.layer_id);
          }
          return InvalidAt(Reason::kDuplicateId, "payload", absl::StrCat("expert id ", id, " occurs twice"),
                           piece.rows.begin + row, layer.layer_id);
        }
      }
    }
  }
  return absl::InternalError("internal error: the fast check rejected ids that the slow check accepts");
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

}  // namespace

absl::StatusOr<std::vector<int32_t>> MoeColumns(const Geometry& geometry, const TensorDescription& description,
                                                int64_t layers) {
  const bool is_all = layers == geometry.num_layers();
  const bool is_moe = layers == geometry.num_moe_layers();
  LayerBasis basis = description.layer_basis;
  if (basis != LayerBasis::kExplicit && !description.layer_ids.empty()) {
    return InvalidAt(Reason::kField, "append.tensor.layer_ids", "must be empty unless layer_basis is EXPLICIT");
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
  RR_ASSIGN_OR_RETURN(auto tensor, OpenTensor(description, payload, options.max_payload_bytes));
  if (options.take) {
    RR_RETURN_IF_ERROR(TakeSlots(*options.take, tensor));
  }
  RR_ASSIGN_OR_RETURN(auto columns, MoeColumns(geometry, description, tensor.layers));
  if (tensor.top_k != geometry.max_top_k()) {
    return Invalid(Reason::kShape, "append.tensor.shape",
                   absl::StrCat("K axis of ", tensor.top_k, ", must be ", geometry.max_top_k()));
  }
  // Checks the ranges before TotalRows adds up their sizes: ends near INT64_MAX would overflow the sum.
  if (absl::Status status = CheckNormal(options.unrecorded, {0, kMaxRows}); !status.ok()) {
    return InvalidAt(Reason::kField, "append.unrecorded", status.message());
  }
  const int64_t rows = tensor.rows + TotalRows(options.unrecorded);
  if (options.expected_rows && *options.expected_rows != rows) {
    return InvalidAt(Reason::kRowCount, "append.rows",
                     absl::StrCat(*options.expected_rows, " rows declared, the tensor has ", tensor.rows, " and ",
                                  TotalRows(options.unrecorded), " are unrecorded"));
  }
  if (options.row_start < 0 || options.row_start > kMaxRows - rows) {
    return InvalidAt(Reason::kRowCount, "append.row_start", absl::StrCat("rows past the limit of ", kMaxRows));
  }
  const RowRange range = RowRange::OfSize(options.row_start, rows);
  if (absl::Status status = CheckNormal(options.unrecorded, range); !status.ok()) {
    return InvalidAt(Reason::kField, "append.unrecorded", status.message());
  }
  return Decoder(geometry, tensor, std::move(columns), options).Decode(range);
}

}  // namespace wire
}  // namespace routing_replay
