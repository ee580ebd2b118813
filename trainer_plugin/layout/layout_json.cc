#include "trainer_plugin/layout/layout_json.h"

#include <string>
#include <vector>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {

absl::StatusOr<PipelineLayout> PipelineLayoutFromJson(const nlohmann::json& json) {
  constexpr const char* kWanted = "is neither a text nor a list of lists of names";
  if (json.is_string()) return ParsePipelineLayout(json.get<std::string>());
  if (!json.is_array()) return Invalid("split.layout", kWanted);
  std::vector<std::vector<std::string>> stages;
  for (const nlohmann::json& stage : json) {
    if (!stage.is_array()) return Invalid("split.layout", kWanted);
    std::vector<std::string>& names = stages.emplace_back();
    for (const nlohmann::json& name : stage) {
      if (!name.is_string()) return Invalid("split.layout", kWanted);
      names.push_back(name.get<std::string>());
    }
  }
  return PipelineLayoutFromNames(stages);
}

}  // namespace routing_replay::trainer
