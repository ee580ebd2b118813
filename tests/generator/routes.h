// The routes of one sequence in a simple form, easy to index, for tests, benchmarks and the quick start.
#ifndef TESTS_GENERATOR_ROUTES_H_
#define TESTS_GENERATOR_ROUTES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace routing_replay::testing {

// `ids` is [rows][layers][top_k], every MoE layer of the model, ids in [0, num_experts).
struct Routes {
  int64_t rows = 0;
  int32_t layers = 0;
  int32_t top_k = 0;
  int32_t num_experts = 0;
  std::vector<uint16_t> ids;

  // The top_k ids of one row and MoE layer.
  absl::Span<const uint16_t> at(int64_t row, int32_t layer) const {
    return absl::MakeConstSpan(ids).subspan(static_cast<size_t>((row * layers + layer) * top_k), top_k);
  }
};

}  // namespace routing_replay::testing

#endif  // TESTS_GENERATOR_ROUTES_H_
