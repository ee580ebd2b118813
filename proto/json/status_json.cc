#include "proto/json/status_json.h"

#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

void Set(nlohmann::json& json, const char* key, const std::string& value) {
  if (!value.empty()) json[key] = value;
}

template <typename Int>
void Set(nlohmann::json& json, const char* key, const std::optional<Int>& value) {
  if (value) json[key] = *value;
}

}  // namespace

nlohmann::json RangesToJson(absl::Span<const RowRange> ranges) {
  nlohmann::json json = nlohmann::json::array();
  for (const RowRange range : ranges) json.push_back({range.begin, range.end});
  return json;
}

nlohmann::json StatusToJson(const absl::Status& status) {
  nlohmann::json json = {{"code", static_cast<int>(status.code())},
                         {"code_name", absl::StatusCodeToString(status.code())},
                         {"message", std::string(status.message())}};
  const std::optional<ErrorDetail> detail = GetErrorDetail(status);
  if (!detail) return json;
  if (detail->reason != Reason::kUnspecified) json["reason"] = ReasonName(detail->reason);
  Set(json, "field", detail->field);
  Set(json, "sample", detail->sample);
  Set(json, "row", detail->row);
  Set(json, "layer", detail->layer);
  Set(json, "committed_rows", detail->committed_rows);
  Set(json, "revision", detail->revision);
  Set(json, "first_differing_block", detail->first_differing_block);
  if (!detail->missing_rows.empty()) json["missing_rows"] = RangesToJson(detail->missing_rows);
  Set(json, "retry_after_ms", detail->retry_after_ms);
  return json;
}

}  // namespace wire
}  // namespace routing_replay
