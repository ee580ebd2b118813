// The command `rrctl diff`, and the comparison of two records of the same rows that it prints. A *choice* is the K
// expert ids of one row in one layer.
#ifndef CLIENT_RRCTL_DIFF_H_
#define CLIENT_RRCTL_DIFF_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/rrctl/application.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::client {

void AddDiff(Application& application);

struct LayerDifferences {
  int64_t choices = 0;  // Choices that were compared.
  int64_t order = 0;    // Choices with the same experts in another order.
  int64_t set = 0;      // Choices with different sets of experts.
  int64_t differing() const { return order + set; }
};

Document DescribeLayer(int32_t layer_id, const LayerDifferences& layer);

struct DifferingChoice {
  int64_t row = 0;
  int32_t ordinal = 0;
  bool same_set = false;  // Only the order differs.
  std::vector<uint16_t> a, b;
};

// Compares two samples and counts how they differ. Its memory does not grow with the number of rows. Not thread-safe.
class RouteComparison {
 public:
  // `geometry` must outlive it.
  explicit RouteComparison(const Geometry& geometry) : geometry_(geometry), layers_(geometry.num_moe_layers()) {}

  // Compares the rows that `a` and `b` both have, of all MoE layers; pass the portions of a sample in ascending order.
  void Add(const SampleRows& a, const SampleRows& b);

  int64_t rows() const { return rows_; }                      // Rows compared.
  int64_t differing_rows() const { return differing_rows_; }  // Rows that differ in any layer.
  int64_t only_a() const { return only_a_; }                  // Rows that only A has.
  int64_t only_b() const { return only_b_; }
  absl::Span<const LayerDifferences> layers() const { return layers_; }
  // The first difference by row, then by layer.
  const std::optional<DifferingChoice>& first() const { return first_; }

 private:
  // Counts the differences of the two rows. Returns true if there are any.
  bool CompareRow(int64_t row, const SampleRows& a, int64_t slot_a, const SampleRows& b, int64_t slot_b);

  const Geometry& geometry_;
  std::vector<LayerDifferences> layers_;
  std::optional<DifferingChoice> first_;
  int64_t rows_ = 0, differing_rows_ = 0, only_a_ = 0, only_b_ = 0;
};

struct DiffOptions {
  std::string a;  // A and B are each "RUN:SAMPLE", where RUN has no colon.
  std::string b;  // Empty: compares what the trainer recorded of A (R2) with what the rollout engine did (R3).
  Producer producer = Producer::kRollout;  // The producer of both, if B is given.
};

// Returns the comparison as an object:
//   "equal"; "a", "b": {"run", "sample", "producer", "rows", "recorded_rows", "tokens", "engine"}
//   "same_tokens": whether the token checks of both samples agree; null if there are none to compare
//   "compared_rows", "rows_only_in_a", "rows_only_in_b", "differing_rows"
//   "order_only", "other_experts": how many choices have the same experts in another order, or other experts
//   "first": the first difference, {"row", "layer", "what", "a", "b"}; null if nothing differs
//   "layers": for each layer that differs, {"layer", "choices", "order_only", "other_experts"}.
// INVALID_ARGUMENT (field A or B) if A or B is not RUN:SAMPLE, which is checked before the server is asked; NOT_FOUND
// for what does not exist; INVALID_ARGUMENT if the runs have different geometries; errors of ReadPortion.
absl::StatusOr<Document> Diff(Client& client, const DiffOptions& options);

}  // namespace routing_replay::client

#endif  // CLIENT_RRCTL_DIFF_H_
