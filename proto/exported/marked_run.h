// The index that the marker of a directory names.
#ifndef PROTO_EXPORTED_MARKED_RUN_H_
#define PROTO_EXPORTED_MARKED_RUN_H_

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/exported/exported_run.h"

namespace routing_replay {
inline namespace wire {

struct MarkedRun {
  int64_t index = 0;  // The number in its name.
  ExportedRun run;
};

// Errors of ReadExportedRun. Exports may end meanwhile.
absl::StatusOr<MarkedRun> ReadMarkedRun(const std::filesystem::path& directory);

// DATA_LOSS (kChecksum).
absl::Status Damaged(absl::string_view what, const std::string& sample = "");

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_MARKED_RUN_H_
