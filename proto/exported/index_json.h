// The index of an exported run as JSON.
#ifndef PROTO_EXPORTED_INDEX_JSON_H_
#define PROTO_EXPORTED_INDEX_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/exported/exported_run.h"

namespace routing_replay {
inline namespace wire {

std::string ExportedIndexToJson(const ExportedRun& run);
// INVALID_ARGUMENT (kField) naming what is missing, unknown, of the wrong kind or out of range; FAILED_PRECONDITION
// (kVersionMismatch) for another version.
absl::StatusOr<ExportedRun> ExportedIndexFromJson(absl::string_view text);

// One sample of an index. Errors as above.
std::string ExportedSampleToJson(const ExportedSample& sample);
absl::StatusOr<ExportedSample> ExportedSampleFromJson(absl::string_view text);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_INDEX_JSON_H_
