// Puts what a configuration says of its layers in the terms of the one rule.
#ifndef PROTO_WIRE_MODEL_CONFIG_LAYER_PATTERN_H_
#define PROTO_WIRE_MODEL_CONFIG_LAYER_PATTERN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/wire/model_config/config_reader.h"
#include "proto/wire/model_config/families.h"
#include "proto/wire/model_config/moe_layers.h"

namespace routing_replay {
inline namespace wire {

struct LayerPlan {
  int64_t num_layers = 0;
  std::vector<int32_t> moe_layers;   // Ascending.
  std::vector<int32_t> hash_layers;  // Those of moe_layers that take their ids from a table.
};

// The layers of a model of a known family. What is wrong is told by the reader's status(). `mtp_layers`: lists may go
// on behind the decoder layers by so many.
LayerPlan PlanLayers(const Family& family, int64_t mtp_layers, ConfigReader& reader);
// The layers of a type that is not known: of all keys that tell of a pattern; an error if there are none, or if they
// disagree.
LayerPlan PlanLayersByKeys(int64_t mtp_layers, ConfigReader& reader);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MODEL_CONFIG_LAYER_PATTERN_H_
