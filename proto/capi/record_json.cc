#include "proto/capi/record_json.h"

#include <utility>

#include "proto/json/status_json.h"

namespace routing_replay::capi {

nlohmann::json ToJson(const SampleRecord& record) {
  nlohmann::json weights = nlohmann::json::array();
  for (const WeightSpan& span : record.weights) {
    weights.push_back({span.rows.begin, span.rows.end, span.version, span.label});
  }
  nlohmann::json out = {{"status", SampleStatusName(record.status)},     {"message", record.message},
                        {"committed_rows", record.committed_rows},       {"revision", record.revision},
                        {"unrecorded", RangesToJson(record.unrecorded)}, {"weights", std::move(weights)}};
  if (record.content_id != 0) out["content_id"] = record.content_id;
  if (record.num_tokens) out["num_tokens"] = *record.num_tokens;
  return out;
}

}  // namespace routing_replay::capi
