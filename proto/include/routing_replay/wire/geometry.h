// The routing geometry of a run: which layers carry routes, and every size and offset that follows from it.
//
// All byte counts in the project come from these functions, never from L·K arithmetic at the place of use: E, K and
// therefore the element width may differ between layers.
#ifndef ROUTING_REPLAY_WIRE_GEOMETRY_H_
#define ROUTING_REPLAY_WIRE_GEOMETRY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace routing_replay {

// Limits on declared sizes, checked before anything is allocated.
inline constexpr int32_t kMaxLayers = 4096;
inline constexpr int32_t kMaxMoeLayers = 512;
inline constexpr int32_t kMaxTopK = 64;
inline constexpr int32_t kMaxExperts = 65535;
inline constexpr int64_t kMaxRows = int64_t{1} << 22;  // Rows of one sample.
inline constexpr int32_t kDefaultBlockRows = 256;
inline constexpr int32_t kMinBlockRows = 32;
inline constexpr int32_t kMaxBlockRows = 4096;
// Limits on list lengths, because an item takes a few bytes on the wire and up to hundreds in memory. They are far
// above practical sizes: even the longest sample in the smallest windows has only 2^17 blocks, half of kMaxBlocks.
inline constexpr size_t kMaxUnrecordedRanges = size_t{1} << 16;  // Of one append, and of one sample.
inline constexpr size_t kMaxBlocks = size_t{1} << 18;            // Per append.
inline constexpr size_t kMaxReadSamples = size_t{1} << 18;       // Per read.

// How ids are stored in a block. Values are those of the wire (Codec in common.proto).
enum class Codec : uint8_t {
  kRaw = 1,     // u8 for E <= 256, else u16 little-endian.
  kPacked = 2,  // ceil(log2 E) bits per id, at least 1.
};
const char* CodecName(Codec codec);

// One MoE layer.
struct LayerRouting {
  int32_t layer_id = 0;     // Global 0-based decoder layer id, dense layers counted.
  int32_t num_experts = 0;  // E: ids are in [0, E).
  int32_t top_k = 0;        // K: ids per row.

  // Bytes of one id in RAW and in decoded form: 1 for E <= 256, else 2. Depends only on E, not on the ids that occur.
  int32_t id_bytes() const { return num_experts <= 256 ? 1 : 2; }
  friend bool operator==(const LayerRouting&, const LayerRouting&) = default;
};

// Immutable once made. Copies are cheap enough for set-up code; hot paths pass const references. Thread-safe. MoE
// layers are addressed by *ordinal*: the index among MoE layers only.
class Geometry {
 public:
  struct Options {
    int32_t num_layers = 0;              // Decoder layers, dense ones included.
    std::vector<int32_t> moe_layer_ids;  // Strictly ascending, in [0, num_layers).
    std::vector<int32_t> num_experts;    // One value for all, or one per MoE layer.
    std::vector<int32_t> top_k;          // One value for all, or one per MoE layer.
  };

  // INVALID_ARGUMENT names the wrong field and, if one layer is wrong, the layer.
  static absl::StatusOr<Geometry> Create(const Options& options);
  // Every layer is a MoE layer with the same E and K. Aborts on bad sizes: for tests and tools with constant arguments.
  static Geometry Uniform(int32_t num_layers, int32_t num_experts, int32_t top_k);

  int32_t num_layers() const { return num_layers_; }
  int32_t num_moe_layers() const { return static_cast<int32_t>(layers_.size()); }
  const LayerRouting& layer(int32_t ordinal) const { return layers_[ordinal]; }
  absl::Span<const LayerRouting> layers() const { return layers_; }
  // The ordinal of decoder layer `layer_id`, or nothing if it carries no routes.
  std::optional<int32_t> FindOrdinal(int32_t layer_id) const;
  // True if all MoE layers have the same E and the same K.
  bool uniform() const { return uniform_; }

  // Ids of one row over all MoE layers.
  int64_t ids_per_row() const { return ids_per_row_; }
  // Bytes of one row over all MoE layers in RAW.
  int64_t raw_row_bytes() const { return raw_row_bytes_; }

  // For arrays [rows][MoE layers][K] of one dtype, in which slots beyond a layer's own K are unused. max_top_k is the K
  // of such an array, max_id_bytes the size of one id in it, and array_ids the number of ids in `rows` rows (nothing if
  // `rows` is negative or the number does not fit an int64).
  int32_t max_top_k() const { return max_top_k_; }
  int32_t max_id_bytes() const { return max_id_bytes_; }
  std::optional<int64_t> array_ids(int64_t rows) const;

  // Bits of one id, and of the K ids of one row of a layer.
  int32_t id_bits(int32_t ordinal, Codec codec) const;
  int64_t row_bits(int32_t ordinal, Codec codec) const;
  // Bytes of `rows` consecutive rows of a layer that start on a byte: a plane.
  int64_t plane_bytes(int32_t ordinal, int64_t rows, Codec codec) const;
  // Where the layer's plane starts in a block of `rows` rows. `ordinal` may be num_moe_layers(): then it is the block's
  // size.
  int64_t plane_offset(int32_t ordinal, int64_t rows, Codec codec) const;
  int64_t block_bytes(int64_t rows, Codec codec) const { return plane_offset(num_moe_layers(), rows, codec); }
  // Bytes of rows [row, row + rows) when they are cut out of a plane: from the byte with their first bit to the byte
  // with their last bit, both included.
  int64_t cut_bytes(int32_t ordinal, int64_t row, int64_t rows, Codec codec) const;
  // The bit inside a byte at which row `row` of a plane starts: 0 … 7, always 0 for RAW.
  int32_t cut_bit_offset(int32_t ordinal, int64_t row, Codec codec) const;

  // Bytes of a cut of `rows` rows whose first id lies at `bit_offset` of its first byte.
  int64_t cut_bytes_at(int32_t ordinal, int32_t bit_offset, int64_t rows, Codec codec) const;

  // PACKED if it saves at least a quarter of the bytes of RAW, else RAW.
  Codec default_codec() const;
  // 64-bit fingerprint of the whole geometry; equal geometries have equal fingerprints on every machine.
  uint64_t fingerprint() const;
  // "48 MoE layers of 48, E 128, K 8"
  std::string DebugString() const;

  friend bool operator==(const Geometry& a, const Geometry& b) {
    return a.num_layers_ == b.num_layers_ && a.layers_ == b.layers_;
  }

 private:
  Geometry() = default;

  int32_t num_layers_ = 0;
  std::vector<LayerRouting> layers_;
  std::vector<int32_t> ordinal_of_layer_;  // -1 for a dense layer.
  bool uniform_ = true;
  int64_t ids_per_row_ = 0;
  int64_t raw_row_bytes_ = 0;
  int32_t max_top_k_ = 0;
  int32_t max_id_bytes_ = 1;
};

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_GEOMETRY_H_
