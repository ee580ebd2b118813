// What differs between two records of the same rows. A *choice* is what one row chose in one layer: K expert ids.
#ifndef CLIENT_RRCTL_COMPARE_ROUTE_COMPARISON_H_
#define CLIENT_RRCTL_COMPARE_ROUTE_COMPARISON_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "client/rrctl/compare/expert_set.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay::client {

// Decoded rows of every MoE layer: layers[ordinal] is [TotalRows(rows)][K]. What it points to outlives it.
struct DecodedRows {
  absl::Span<const RowRange> rows;  // Normal list.
  absl::Span<const std::vector<uint16_t>> layers;
};

struct LayerDifferences {
  int64_t choices = 0;       // Compared, of which …
  int64_t order = 0;         // … the same experts in another order,
  int64_t set = 0;           // … other experts,
  int64_t disjoint = 0;      // … among those: not one expert in common.
  int64_t replaced_ids = 0;  // Ids of the first record that the second does not have.
  int64_t differing() const { return order + set; }
};

struct DifferingChoice {
  int64_t row = 0;
  int32_t ordinal = 0;
  bool same_set = false;  // Another order alone.
  std::vector<uint16_t> a, b;
};

// Not thread-safe. Memory does not grow with the rows.
class RouteComparison {
 public:
  // `geometry` outlives it.
  explicit RouteComparison(const Geometry& geometry);

  // Compares the rows that both have; the portions of a sample come in ascending order.
  void Add(const DecodedRows& a, const DecodedRows& b);

  int64_t rows() const { return rows_; }                      // Compared.
  int64_t differing_rows() const { return differing_rows_; }  // In any layer.
  int64_t only_a() const { return only_a_; }                  // Rows that the other has not.
  int64_t only_b() const { return only_b_; }
  absl::Span<const LayerDifferences> layers() const { return layers_; }
  // The first by row, then by layer.
  const std::optional<DifferingChoice>& first() const { return first_; }

 private:
  // True if they differ.
  bool CompareRow(int64_t row, const DecodedRows& a, int64_t slot_a, const DecodedRows& b, int64_t slot_b);

  const Geometry& geometry_;
  std::vector<ExpertSet> sets_;
  std::vector<LayerDifferences> layers_;
  std::optional<DifferingChoice> first_;
  int64_t rows_ = 0, differing_rows_ = 0, only_a_ = 0, only_b_ = 0;
};

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_COMPARE_ROUTE_COMPARISON_H_
