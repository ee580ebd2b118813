// Pipeline layouts as JSON: the text form, or a list of stages, each a list of names.
#ifndef TRAINER_PLUGIN_LAYOUT_LAYOUT_JSON_H_
#define TRAINER_PLUGIN_LAYOUT_LAYOUT_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "routing_replay/trainer/layers.h"

namespace routing_replay::trainer {

// INVALID_ARGUMENT (kField, field "split.layout") for anything else.
absl::StatusOr<PipelineLayout> PipelineLayoutFromJson(const nlohmann::json& json);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_LAYOUT_JSON_H_
