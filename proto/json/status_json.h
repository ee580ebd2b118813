// A status as JSON, for those who cannot hold an absl::Status:
//
//   {"code": 3, "code_name": "INVALID_ARGUMENT", "message": "payload: …", "reason": "ID_RANGE", "field": "payload",
//    "sample": "math-7/0", "row": 12, "layer": 3, "committed_rows": 0, "revision": 0, "first_differing_block": 0,
//    "missing_rows": [[0, 4]], "retry_after_ms": 50}
//
// What follows the message is of the ErrorDetail; fields that are not set are absent.
#ifndef PROTO_JSON_STATUS_JSON_H_
#define PROTO_JSON_STATUS_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "routing_replay/wire/row_range.h"

namespace routing_replay {
inline namespace wire {

nlohmann::json StatusToJson(const absl::Status& status);
// [[begin, end], …]
nlohmann::json RangesToJson(absl::Span<const RowRange> ranges);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_JSON_STATUS_JSON_H_
