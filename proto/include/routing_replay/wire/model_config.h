// The routing geometry of a model from what users have: the config.json of Hugging Face Transformers, or the
// configuration of Megatron-Core.
#ifndef ROUTING_REPLAY_WIRE_MODEL_CONFIG_H_
#define ROUTING_REPLAY_WIRE_MODEL_CONFIG_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay {

// What a router makes of its logits.
enum class RouterScore : uint8_t { kSoftmax = 0, kSigmoid = 1, kSqrtSoftplus = 2 };
// What a bias that only takes part in the choice is added to.
enum class ExpertBias : uint8_t { kNone = 0, kToScore = 1, kToLogit = 2 };

// Only experts of the `kept` best of `groups` equal groups may be chosen.
struct GroupLimit {
  int32_t groups = 0;
  int32_t kept = 0;
  int32_t best_summed = 0;  // A group's rank is the sum of so many of its best scores: 1 its maximum, 2 most models.
  friend bool operator==(const GroupLimit&, const GroupLimit&) = default;
};

// What a configuration tells of a model's routers beside the geometry. A fact that is not set is one that the
// configuration and the model's type leave open.
struct ModelRouting {
  std::string model_type;  // The one that was recognised; empty where keys alone decided.
  std::optional<RouterScore> score_function;
  // The weights of the chosen are divided by their sum. With softmax the same as softmax over the chosen alone; not set
  // where softmax over as many experts as are chosen makes it the same either way.
  std::optional<bool> renormalized;
  std::optional<double> scaling_factor;   // On the routed part, wherever the model applies it.
  std::optional<GroupLimit> group_limit;  // One that has an effect.
  std::optional<ExpertBias> expert_bias;
  std::optional<int32_t> shared_experts;  // At least: some models tell only that there is one.
  int32_t mtp_layers = 0;                 // Declared; they are no decoder layers, and no part of the geometry.
  // Router outputs without weights of their own (identity, skip): the last ids of each layer. Counted in the
  // geometry's num_experts, which is the size of the id space.
  int32_t zero_experts = 0;
  std::vector<int32_t> hash_layers;  // MoE layers of the geometry whose ids come from a table of token ids.
  int32_t routers_per_layer = 1;
  // Fact → where it was found, for people: {"num_experts": "text_config.n_routed_experts", …}.
  std::map<std::string, std::string> sources;
};

struct ModelConfig {
  Geometry geometry;
  ModelRouting routing;
};

// From the text of a config.json (NaN and Infinity as Python writes them are fine): nested text configurations, the
// names of all generations of a key, the defaults of the model's type where a pattern is left out, per_layer_config.
// A type that is not known is read by its keys alone if these leave no doubt.
// INVALID_ARGUMENT (kField) naming the key: "no routed experts" for a dense model, or one whose fields leave no MoE
// layer; keys that are missing (the message lists the names that were looked for), of the wrong kind, or that
// contradict each other; encoder-decoder models.
absl::StatusOr<ModelConfig> ModelConfigFromHuggingFace(absl::string_view json);

// From Megatron-Core's TransformerConfig as a JSON object: num_layers, num_moe_experts (or num_experts),
// moe_router_topk, moe_layer_freq as a number, a list or its command line's text, or hybrid_override_pattern (or
// hybrid_layer_pattern); first_k_dense_replace as bridges write it; moe_router_score_function, moe_router_pre_softmax,
// moe_router_num_groups, moe_router_group_topk, moe_router_topk_scaling_factor, moe_router_enable_expert_bias,
// moe_shared_expert_intermediate_size, mtp_num_layers, moe_n_hash_layers. Others are not looked at; null is absent.
// Errors as above.
absl::StatusOr<ModelConfig> ModelConfigFromMegatron(absl::string_view json);

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_WIRE_MODEL_CONFIG_H_
