// What an export finds in its directory: a run that was exported before, and what an export that did not end left.
//
//   journal   of an export under way: the run as an index without samples, of the generation that it is to become; then
//             each sample, before its file is written. See layout.h for its lines.
#ifndef PROTO_EXPORTED_FOUND_RUN_H_
#define PROTO_EXPORTED_FOUND_RUN_H_

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/exported/exported_run.h"

namespace routing_replay {
inline namespace wire {

struct FoundRun {
  // Of the index that holds, with what the journal adds where an export did not end.
  std::vector<ExportedSample> samples;
  std::set<std::string> damaged;     // … of them, those of the index whose file is gone or not as it was written.
  std::vector<std::string> resumed;  // Files of those that the journal added, which need not be on the disk.
  int64_t index = 0;                 // The number of the index that holds; 0: none.
  bool marked = false;               // The marker says so. Otherwise it is the highest.
  std::set<int64_t> indexes;         // The numbers of all that have such a name.
  int64_t next_file = 0;             // No file has this number or a higher one, there or by a name in index or journal.
  std::vector<std::string> journal_files;  // All that the journal names.
  bool has_journal = false;
  bool journal_is_past = false;  // The index has its samples already.
  bool journal_is_torn = false;  // Its last line has no end.
};

// What `directory` holds of `run` (of which only the name, the producer and the geometry are looked at). Changes
// nothing. Files that a marked index names are not read, only measured; all others are.
//
// FAILED_PRECONDITION (kGeometryMismatch, or kField naming run or producer) where another run is there, and
// kVersionMismatch for one of another version; ALREADY_EXISTS where nothing shows that it is an exported run; DATA_LOSS
// (kChecksum) where marker, index or the start of the journal is damaged.
absl::StatusOr<FoundRun> FindExported(const std::filesystem::path& directory, const ExportedRun& run);

// FAILED_PRECONDITION as above.
absl::Status CheckSameRun(const std::filesystem::path& directory, const ExportedRun& there, const ExportedRun& wanted);

// The line that a journal starts with.
std::string JournalStart(const ExportedRun& run, int64_t generation);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_FOUND_RUN_H_
