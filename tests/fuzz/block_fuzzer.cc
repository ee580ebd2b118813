// Takes random bytes for a block. CheckIds must agree with a simple loop over the bits, and a legal block must give the
// same ids when it is decoded whole, in parts, or after it is re-encoded with the other codec.
//
// The first four bytes of an input choose geometry, codec, rows and the cut; the rest are the block's bytes.
#include <algorithm>
#include <cstdio>

#include "proto/wire/block/block.h"
#include "tests/fuzz/block_geometry.h"
#include "tests/fuzz/smoke.h"

constexpr size_t kChoices = 4;

namespace routing_replay {
namespace {

using Bytes = std::vector<uint8_t>;

// Returns the expert id that is number `index` in a plane of ids with `width` bits each. Reads it bit by bit, as
// FORMAT.md defines it.
uint32_t Field(absl::Span<const uint8_t> plane, int width, int64_t index) {
  uint32_t value = 0;
  for (int64_t bit = index * width, n = 0; n < width; ++bit, ++n) value |= (plane[bit / 8] >> bit % 8 & 1u) << n;
  return value;
}

int Width(const Geometry& geometry, int32_t ordinal, Codec codec) {
  const LayerRouting layer = geometry.layer(ordinal);
  if (codec == Codec::kRaw) return 8 * layer.id_bytes();
  int width = 0;
  while ((1 << width) < layer.num_experts) ++width;
  return width;
}

bool IsLegal(const Geometry& geometry, const BlockView& block) {
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    const LayerRouting layer = geometry.layer(ordinal);
    const absl::Span<const uint8_t> plane = block.plane(geometry, ordinal);
    const int width = Width(geometry, ordinal, block.codec);
    const int64_t fields = block.rows.size() * layer.top_k;
    for (int64_t row = 0; row < block.rows.size(); ++row) {
      for (int32_t k = 0; k < layer.top_k; ++k) {
        if (Field(plane, width, row * layer.top_k + k) >= static_cast<uint32_t>(layer.num_experts)) return false;
      }
    }
    for (int64_t bit = fields * width; bit < static_cast<int64_t>(plane.size()) * 8; ++bit) {
      if ((plane[bit / 8] >> bit % 8 & 1) != 0) return false;
    }
  }
  return true;
}

Bytes Decoded(const Geometry& geometry, const BlockView& block, int32_t ordinal) {
  const LayerRouting layer = geometry.layer(ordinal);
  Bytes ids(block.rows.size() * layer.top_k * layer.id_bytes());
  DecodeCut(geometry, ordinal, block.codec, 0, block.rows.size(), block.plane(geometry, ordinal), absl::MakeSpan(ids));
  return ids;
}

void CheckCut(const Geometry& geometry, const BlockView& block, int32_t ordinal, RowRange rows, const Bytes& ids) {
  const LayerRouting layer = geometry.layer(ordinal);
  const int64_t row_bytes = layer.top_k * layer.id_bytes();
  const int64_t first = rows.begin - block.rows.begin;
  Bytes cut(geometry.cut_bytes(ordinal, first, rows.size(), block.codec));
  Require(CutPlane(geometry, block, ordinal, rows, absl::MakeSpan(cut)).ok(), "cutting a legal block fails");
  const int64_t bit = first * layer.top_k * Width(geometry, ordinal, block.codec);
  Bytes out(rows.size() * row_bytes);
  DecodeCut(geometry, ordinal, block.codec, static_cast<int32_t>(bit % 8), rows.size(), cut, absl::MakeSpan(out));
  Require(std::equal(out.begin(), out.end(), ids.begin() + first * row_bytes), "a cut has different ids");
}

void CheckLegal(const Geometry& geometry, const BlockView& block, RowRange cut) {
  for (const Codec codec : {Codec::kRaw, Codec::kPacked}) {
    const Block other = *Merge(geometry, {{block, block.rows}}, codec);
    Require(CheckCrc(geometry, other.view()).ok(), "the CRCs of the other codec are wrong");
    for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
      const Bytes ids = Decoded(geometry, block, ordinal);
      Require(Decoded(geometry, other.view(), ordinal) == ids, "the other codec has different ids");
      CheckCut(geometry, other.view(), ordinal, cut, ids);
      CheckCut(geometry, block, ordinal, cut, ids);
    }
  }
}

void CheckBlock(const uint8_t* choices, absl::Span<const uint8_t> bytes) {
  const Geometry geometry = MakeBlockGeometry(choices[0]);
  const Codec codec = choices[0] / 2 % 2 == 0 ? Codec::kRaw : Codec::kPacked;
  const RowRange rows = RowRange::OfSize(choices[1] % 64, choices[2] % 64 + 1);
  const int64_t size = geometry.block_bytes(rows.size(), codec);
  Block block{.rows = rows, .codec = codec, .bytes = Buffer(size)};
  std::fill_n(block.bytes.data(), size, uint8_t{0});
  std::copy_n(bytes.begin(), std::min<size_t>(size, bytes.size()), block.bytes.data());
  ComputeCrc(geometry, block);
  const bool legal = CheckIds(geometry, block.view()).ok();
  Require(legal == IsLegal(geometry, block.view()), legal ? "illegal ids pass" : "legal ids are rejected");
  if (!legal) return;
  const int64_t first = choices[3] % rows.size();
  CheckLegal(geometry, block.view(),
             {rows.begin + first, rows.begin + first + 1 + choices[3] / 64 % (rows.size() - first)});
}

}  // namespace
}  // namespace routing_replay

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size >= kChoices) routing_replay::CheckBlock(data, {data + kChoices, size - kChoices});
  return 0;
}
