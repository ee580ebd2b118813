#include <algorithm>
#include <numeric>

#include "proto/wire/block/block.h"
#include "tests/fuzz/block_geometry.h"
#include "tests/fuzz/smoke.h"

namespace {

using routing_replay::Codec;
using routing_replay::Geometry;

// Returns random ids [rows][K] of one layer, with `id_bytes` bytes per id. The ids of a row are all different.
std::vector<uint8_t> MakeIds(std::mt19937_64& random, int64_t rows, int32_t experts, int32_t top_k, int32_t id_bytes) {
  std::vector<int> all(experts);
  std::iota(all.begin(), all.end(), 0);
  std::vector<uint8_t> ids;
  for (int64_t row = 0; row < rows; ++row) {
    for (int32_t k = 0; k < top_k; ++k) {
      std::swap(all[k], all[k + random() % (experts - k)]);
      for (int32_t byte = 0; byte < id_bytes; ++byte) ids.push_back(static_cast<uint8_t>(all[k] >> 8 * byte));
    }
  }
  return ids;
}

}  // namespace

// Four bytes that choose geometry, codec, rows and cut, then a block that matches them.
std::vector<uint8_t> MakeSeed(std::mt19937_64& random) {
  std::vector<uint8_t> seed(4);
  std::generate(seed.begin(), seed.end(), std::ref(random));
  const Geometry geometry = MakeBlockGeometry(seed[0]);
  const Codec codec = seed[0] / 2 % 2 == 0 ? Codec::kRaw : Codec::kPacked;
  const int64_t rows = seed[2] % 64 + 1;
  for (int32_t ordinal = 0; ordinal < geometry.num_moe_layers(); ++ordinal) {
    const auto layer = geometry.layer(ordinal);
    const auto ids = MakeIds(random, rows, layer.num_experts, layer.top_k, layer.id_bytes());
    std::vector<uint8_t> plane(geometry.plane_bytes(ordinal, rows, codec));
    routing_replay::EncodePlane(geometry, ordinal, codec, rows, ids, absl::MakeSpan(plane));
    seed.insert(seed.end(), plane.begin(), plane.end());
  }
  return seed;
}
