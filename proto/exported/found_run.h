// What an export finds in its directory: a run that was exported before, and what an export that did not end left.
//
//   journal   of an export under way: the run as an index without samples, then each sample whose file has its name, a
//             line each: CRC32C of the JSON in eight hexadecimal digits, a space, the JSON
#ifndef PROTO_EXPORTED_FOUND_RUN_H_
#define PROTO_EXPORTED_FOUND_RUN_H_

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/exported/exported_run.h"

namespace routing_replay {

inline constexpr char kExportIndex[] = "index.json", kExportMarker[] = "DONE", kExportJournal[] = "journal";

struct FoundRun {
  std::vector<ExportedSample> samples;
  std::set<std::string> journalled;  // … of them, those of an export that did not end.
  std::set<std::string> damaged;     // … of them, those of a finished one whose file is gone or of another size.
  int64_t next_file = 0;             // No file has this number or a higher one.
  bool finished = false;             // Has a marker.
};

// What `directory` holds of `run` (of which only the name, the producer and the geometry are looked at). Files of a
// finished export are not read; all others are, and those that do not fit their CRC32C are taken as not there.
// FAILED_PRECONDITION (kGeometryMismatch, or kField naming run or producer) where another run is there; ALREADY_EXISTS
// where something else is; errors of ReadExportedRun for a marked one that is damaged or of another version.
absl::StatusOr<FoundRun> FindExported(const std::filesystem::path& directory, const ExportedRun& run);

std::string JournalLine(absl::string_view json);

// "00000007.npy", and whether a name is such a one or that of a file that was to become one.
std::string ExportFileName(int64_t number);
bool IsExportFileName(absl::string_view name);

}  // namespace routing_replay

#endif  // PROTO_EXPORTED_FOUND_RUN_H_
