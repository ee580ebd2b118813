// Where the ids of each (local MoE layer, local row) lie in a rank's index buffer.
//
//   buffer = slabs of all local layers, one after the other                  slab = [rows][K] ids, compact width
//
// There is no padding, neither between slabs nor inside: the unit is one row of one layer, whatever E and K the
// neighbours have. Only the base of a buffer is aligned. Slabs of two-byte ids come first, so that every id lies on a
// multiple of its width; slabs of one width are in slot order. Addresses depend on the layout alone, so they may be
// captured in a CUDA graph.
#ifndef ROUTING_REPLAY_TRAINER_BUFFER_LAYOUT_H_
#define ROUTING_REPLAY_TRAINER_BUFFER_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

// What the base of a buffer, or of a pool of buffers, should have.
inline constexpr int64_t kBufferAlignment = 256;
inline constexpr int64_t kMaxLocalRows = int64_t{1} << 24;

// Immutable, thread-safe.
class BufferLayout {
 public:
  struct Options {
    std::vector<int32_t> ordinals;  // MoE ordinals of the local layers in slot order, each at most once. May be empty.
    int64_t rows = 0;               // Local rows, pads included.
    int32_t ep_size = 1;            // Size of the expert-parallel group: spreads filler.
  };
  // INVALID_ARGUMENT (kField) for an ordinal that the geometry lacks or that stands twice, rows outside
  // [0, kMaxLocalRows], and an E that ep_size does not divide (no filler is balanced then, and Megatron refuses it).
  static absl::StatusOr<BufferLayout> Create(const Geometry& geometry, const Options& options);

  const Geometry& geometry() const { return geometry_; }
  int32_t num_layers() const { return static_cast<int32_t>(ordinals_.size()); }
  int64_t rows() const { return rows_; }
  int32_t ep_size() const { return ep_size_; }
  int32_t ordinal(int32_t slot) const { return ordinals_[slot]; }
  const LayerRouting& layer(int32_t slot) const { return geometry_.layer(ordinals_[slot]); }

  // Bytes of one row of a layer, of its slab, and of the whole buffer, which is the sum of its slabs.
  int64_t row_bytes(int32_t slot) const;
  int64_t slab_bytes(int32_t slot) const { return rows_ * row_bytes(slot); }
  int64_t bytes() const { return bytes_; }
  int64_t slab_offset(int32_t slot) const { return offsets_[slot]; }

  // The slab of a layer inside a buffer of bytes() bytes.
  absl::Span<const uint8_t> slab(absl::Span<const uint8_t> buffer, int32_t slot) const;
  absl::Span<uint8_t> slab(absl::Span<uint8_t> buffer, int32_t slot) const;

 private:
  explicit BufferLayout(const Geometry& geometry) : geometry_(geometry) {}

  Geometry geometry_;
  std::vector<int32_t> ordinals_;
  std::vector<int64_t> offsets_;
  int64_t rows_ = 0;
  int64_t bytes_ = 0;
  int32_t ep_size_ = 1;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_BUFFER_LAYOUT_H_
