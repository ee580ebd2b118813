// The layer split of a case, and its MoE pattern.
#ifndef TESTS_GOLDEN_KINDS_SPLIT_OF_H_
#define TESTS_GOLDEN_KINDS_SPLIT_OF_H_

#include "absl/status/statusor.h"
#include "routing_replay/trainer/layers.h"
#include "routing_replay/wire/geometry.h"
#include "tests/golden/kind.h"

namespace routing_replay::golden {

// An int, or `fallback` for null.
inline int32_t IntOr(const Json& json, int32_t fallback) { return json.is_null() ? fallback : json.get<int32_t>(); }
inline std::optional<int32_t> OptionalInt(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<int32_t>(json.get<int32_t>());
}

// The names of megatron/layers*.json.
inline trainer::LayerSplit MegatronSplit(const Json& input) {
  return {.num_layers = input.at("num_layers").get<int32_t>(),
          .pipeline_size = input.at("pp").get<int32_t>(),
          .virtual_stages = IntOr(input.at("vpp"), 1),
          .first_stage_layers = OptionalInt(input.at("first")),
          .last_stage_layers = OptionalInt(input.at("last")),
          .account_for_embedding = input.at("account_embedding").get<bool>(),
          .account_for_loss = input.at("account_loss").get<bool>()};
}

}  // namespace routing_replay::golden

#endif  // TESTS_GOLDEN_KINDS_SPLIT_OF_H_
