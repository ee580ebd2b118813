// A padding policy from JSON: {"policy": NAME, options…}, every option under the framework's own name. Absent options
// keep the default of the policy's struct (routing_replay/trainer/padding/); null is absent. rrt_plan_new in
// routing_replay/trainer/capi.h lists them.
#ifndef TRAINER_PLUGIN_LAYOUT_PADDING_PADDING_JSON_H_
#define TRAINER_PLUGIN_LAYOUT_PADDING_PADDING_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "routing_replay/trainer/padding.h"

namespace routing_replay::trainer {

// INVALID_ARGUMENT (kField) naming, below `path`, an unknown policy or an option that is unknown or cannot be.
absl::StatusOr<PaddingPolicy> PaddingPolicyFromJson(const nlohmann::json& json, absl::string_view path);

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_LAYOUT_PADDING_PADDING_JSON_H_
