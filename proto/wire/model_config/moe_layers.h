// Which decoder layers of a model are MoE layers. One rule, in whose terms every configuration is put: Megatron's
// moe_layer_freq, first_k_dense_replace, decoder_sparse_step, moe_layer_start_index … moe_layer_interval,
// expert_layer_period, interleave_moe_layer_step, lists of flags, of names and of ids, and hybrid patterns.
#ifndef PROTO_WIRE_MODEL_CONFIG_MOE_LAYERS_H_
#define PROTO_WIRE_MODEL_CONFIG_MOE_LAYERS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace routing_replay {
inline namespace wire {

// Layer i is a MoE layer if all that is set says so: first <= i <= last, i % step == offset, i not in `dense`, and
// flags[i] where there are flags.
struct MoeLayerRule {
  int64_t first = 0;
  int64_t last = std::numeric_limits<int64_t>::max();
  int64_t step = 1;
  int64_t offset = 0;
  std::vector<int64_t> dense;            // Ids that no layer has change nothing.
  std::optional<std::vector<bool>> moe;  // A flag per layer.
};

// The MoE layers of a model of `num_layers` decoder layers, ascending; may be empty. INVALID_ARGUMENT (kField, field
// `key`) if there are more layers than a geometry may have or none, if the step is below 1, or if the flags are of
// another number of layers.
absl::StatusOr<std::vector<int32_t>> MoeLayerIds(int64_t num_layers, const MoeLayerRule& rule, absl::string_view key);

// Megatron's moe_layer_freq as the text that its command line takes: a number N, every N-th layer from layer 0 on, or
// an expression of lists, numbers, +, * and parentheses, such as "([0]*3+[1]*58)", a flag per layer: 1 or 0.
struct MoeLayerFrequency {
  int64_t step = 1;
  std::optional<std::vector<int64_t>> flags;
};
// INVALID_ARGUMENT (kField, field "moe_layer_freq") for any other text, and for lists above kMaxLayers.
absl::StatusOr<MoeLayerFrequency> ParseMoeLayerFrequency(absl::string_view text);

// The flags of a hybrid pattern, one symbol per layer: E experts; M, G, D, *, + and - carry no routes. Pipeline marks
// ("|") are skipped, and what follows "/" are the MTP layers. INVALID_ARGUMENT (kField, field `key`) naming a symbol
// that is none.
absl::StatusOr<std::vector<bool>> HybridMoeFlags(absl::string_view pattern, absl::string_view key);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MODEL_CONFIG_MOE_LAYERS_H_
