// The MoE families: per model type, where the layers' pattern stands and what the router computes. Sources: the
// configuration and model classes of Hugging Face Transformers 5.23, and publishers' config.json files.
#ifndef PROTO_WIRE_MODEL_CONFIG_FAMILIES_H_
#define PROTO_WIRE_MODEL_CONFIG_FAMILIES_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/wire/model_config.h"

namespace routing_replay {
inline namespace wire {

// How a type tells which layers are MoE layers where no mlp_layer_types does.
enum class LayerPattern : uint8_t {
  kAll,
  kPrefix,       // The first `prefix` are dense; moe_layer_freq.
  kSparseStep,   // decoder_sparse_step, mlp_only_layers.
  kInterval,     // moe_layer_start_index, moe_layer_end_index, moe_layer_interval.
  kPeriod,       // expert_layer_period, expert_layer_offset.
  kIdsOrStep,    // moe_layers, else interleave_moe_layer_step.
  kIdsOrPrefix,  // moe_layers_enum, else the first `prefix` are dense.
  kBlockTypes,   // layers_block_type, layer_types or hybrid_override_pattern, which give the depth, too.
  kHashPrefix,   // All; the first num_hash_layers (`prefix`) take their ids from a table.
};

enum class Renormalization : uint8_t {
  kUnknown,
  kAlways,
  kNever,
  kByKey,               // norm_topk_prob, moe_renormalize
  kByKeyUnlessSoftmax,  // Softmax over the chosen alone, else by key.
  kIfExponent,          // moe_normalize_expert_weights is there.
};
enum class Scaling : uint8_t { kUnknown, kOne, kByKey, kAverageWithShared };
enum class BiasRule : uint8_t { kUnknown, kNone, kToScore, kToLogit, kByKey };
enum class SharedRule : uint8_t { kNone, kOne, kByKey };

struct RouterFacts {
  std::optional<RouterScore> score;  // With score_by_key: where the key is absent. A key that says otherwise unsets it.
  bool score_by_key = false;
  Renormalization renormalized = Renormalization::kUnknown;
  Scaling scaling = Scaling::kUnknown;
  BiasRule bias = BiasRule::kUnknown;
  int32_t group_best = 0;  // GroupLimit::best_summed; 0: no group limit.
  SharedRule shared = SharedRule::kByKey;
};

inline constexpr int32_t kNoDefault = -1;

struct Family {
  const char* model_types;  // Separated by spaces; a "_text" at the end of a type is not looked at.
  LayerPattern pattern = LayerPattern::kAll;
  int32_t prefix = 0;                // Where the key is absent; kNoDefault: it must be there.
  const char* prefix_key = nullptr;  // Null: the type knows none, and a first_k_dense_replace must agree with it.
  bool every_nth = false;            // moe_layer_freq N: every N-th layer from layer 0 on, after the prefix.
  RouterFacts router;
  const char* depth_key = "num_hidden_layers";
  const char* experts_in = nullptr;            // The object that describes the experts, if it is one of its own.
  const char* enabled_by = nullptr;            // A flag without which there are no experts.
  const char* decisive_experts_key = nullptr;  // Wins over other names of E.
  int32_t min_experts = 1;                     // With fewer the type builds no router.
  const char* zero_experts_key = nullptr;
  int32_t zero_experts = 0;  // Of every model of the type.
  int32_t routers_per_layer = 1;
};

// The family of a model type, or null.
const Family* FindFamily(absl::string_view model_type);

// What keys alone tell, for types that are in no family.
const RouterFacts& UnknownRouter();

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MODEL_CONFIG_FAMILIES_H_
