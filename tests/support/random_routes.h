// Random legal routes for any geometry, in a simple form for tests.
#ifndef TESTS_SUPPORT_RANDOM_ROUTES_H_
#define TESTS_SUPPORT_RANDOM_ROUTES_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::testing {

// [layer][row * K + slot]; ids of a row and layer are distinct.
struct RandomRoutes {
  int64_t rows = 0;
  std::vector<std::vector<uint16_t>> layers;

  // The ids of one layer for the rows of the ranges, concatenated.
  std::vector<uint16_t> Slice(int32_t ordinal, const std::vector<RowRange>& ranges) const {
    const size_t k = rows == 0 ? 0 : layers[ordinal].size() / rows;
    std::vector<uint16_t> out;
    for (RowRange r : ranges) {
      out.insert(out.end(), layers[ordinal].begin() + r.begin * k, layers[ordinal].begin() + r.end * k);
    }
    return out;
  }
  // The rows as an engine returns them: [rows][MoE layers][K] int32, C order. The geometry must have one K.
  std::vector<int32_t> Tensor(RowRange range) const {
    std::vector<int32_t> out;
    for (int64_t row = range.begin; row < range.end; ++row) {
      for (const std::vector<uint16_t>& layer : layers) {
        const size_t k = layer.size() / rows;
        out.insert(out.end(), layer.begin() + row * k, layer.begin() + (row + 1) * k);
      }
    }
    return out;
  }
};

inline RandomRoutes MakeRandomRoutes(const Geometry& geometry, int64_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  RandomRoutes routes{.rows = rows};
  for (const LayerRouting& layer : geometry.layers()) {
    std::vector<uint16_t>& ids = routes.layers.emplace_back();
    ids.reserve(rows * layer.top_k);
    for (int64_t row = 0; row < rows; ++row) {
      const auto first = static_cast<int64_t>(ids.size());
      while (static_cast<int64_t>(ids.size()) < first + layer.top_k) {
        const auto id = static_cast<uint16_t>(random() % layer.num_experts);
        if (std::find(ids.begin() + first, ids.end(), id) == ids.end()) ids.push_back(id);
      }
    }
  }
  return routes;
}

inline std::vector<uint32_t> MakeTokens(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % 150000);
  return tokens;
}

template <typename T>
absl::Span<const uint8_t> AsBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_RANDOM_ROUTES_H_
