// Runs to directories and back: checkpoints of a run, and moves from one server to another. The directory is an
// exported run (proto/FORMAT.md), which DirectorySource of the trainer reads as it is.
//
//   auto run = client->JoinRun("grpo-42");
//   ExportRun(**run, "/checkpoints/step-100", {.groups = {{0, 101}}});
//   run->ReleaseGroups(0, 101);
//   ExportRun(**run, "/checkpoints/step-110", {.groups = {{0, 111}}, .previous = "/checkpoints/step-100"});
//   ImportRun(*client, "/checkpoints/step-110");
//
// An export that ends early leaves no directory of that name; an import that ends early is made again.
#ifndef ROUTING_REPLAY_CHECKPOINT_H_
#define ROUTING_REPLAY_CHECKPOINT_H_

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/client.h"

namespace routing_replay {

struct CheckpointProgress {
  int64_t samples = 0;  // Done, of …
  int64_t total = 0;
  int64_t bytes = 0;  // Of rows moved, in the dtype of storage.
};
// Called on the thread of the call.
using OnCheckpointProgress = std::function<void(const CheckpointProgress&)>;

struct ExportOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Half-open; absent: all.
  Producer producer = Producer::kRollout;
  // An export of the same run. What the run has with the same content is taken over from there by hard links; so is
  // what it has no more, of these groups: that was released. Empty: the run alone, all of it read.
  std::filesystem::path previous;
  std::chrono::milliseconds read_timeout = std::chrono::seconds(120);  // Of one portion, some tens of MB.
  OnCheckpointProgress on_progress;
};

struct ExportOutcome {
  int64_t samples = 0;   // In the directory.
  int64_t written = 0;   // … of them read from the run and written; the others come from the previous export.
  int64_t unsealed = 0;  // Of the run, left out: more rows may come, or it was begun again while it was exported.
  int64_t bytes = 0;     // Of rows written, in the dtype of storage.
};

// The sealed samples of the run into a new directory, beside running appends. It appears whole, under its name, when
// this returns; until then it is "DIRECTORY.part". Whatever a sample shares with another one is written with each.
// Holds the rows of a portion in memory, or of one sample where that is larger.
//
// Errors: those of RunExporter and of Run::Read (UNAVAILABLE and DEADLINE_EXCEEDED are final: call again),
// ALREADY_EXISTS where the directory is not empty, and of `previous` those of ReadExportedRun and FAILED_PRECONDITION
// (kField, kGeometryMismatch) where it is of another run. The error of Run::List where a server lost the run, also
// while it is exported. After these there is no directory. DATA_LOSS naming a sample that the store or the previous
// export lost: then the directory is there, with all others.
absl::StatusOr<ExportOutcome> ExportRun(Run& run, const std::filesystem::path& directory,
                                        const ExportOptions& options = {});

struct ImportOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Of the directory; half-open, absent: all.
  std::string run;                                    // Empty: the name that it was exported under.
  RunSettings settings;                               // Of the run, if it has to be made.
  AppenderOptions appender;                           // on_outcome is not used.
  OnCheckpointProgress on_progress;
};

struct ImportOutcome {
  std::string run;
  int64_t samples = 0;   // Of the directory, in these groups, all in the run now.
  int64_t appended = 0;  // … of them, with rows or the seal appended now.
  int64_t bytes = 0;     // Of rows appended, in the dtype of storage.
};

// The samples of the directory into a run, which is made if it is not there. What is in the run already must be the
// same, row by row, which the server compares, and is appended to where it ends; a sample of the same content id is
// left alone.
//
// A sample keeps its rows, unrecorded rows, weights, group, seal and the token check at its end. The protocol takes no
// token checks without tokens, but a CRC can be continued to any value by one token: the last row is given the token
// that does this. Checks at rows between, which only the first server knew, are not known. Revision, content id and
// provenance (engine "import") are those of a new sample, and prefixes are copies.
//
// Errors: those of ReadExportedRun and ReadExportedFile, OpenRun and Appender; ALREADY_EXISTS (kConflictingRows) naming
// a sample of which the run holds something else, to which nothing is appended; FAILED_PRECONDITION
// (kGeometryMismatch).
absl::StatusOr<ImportOutcome> ImportRun(Client& client, const std::filesystem::path& directory,
                                        const ImportOptions& options = {});

struct VerifyOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Half-open; absent: all.
  Producer producer = Producer::kRollout;
  std::chrono::milliseconds read_timeout = std::chrono::seconds(120);  // Of one portion, some tens of MB.
  OnCheckpointProgress on_progress;                                    // Bytes are those that came.
};

struct DamagedSample {
  std::string sample;
  // Where the first bytes were that did not fit their CRC when they came here: the first row of the piece, and the
  // global id of the layer. Absent where the server found the damage, and for files, which have one CRC each.
  std::optional<int64_t> row;
  std::optional<int32_t> layer;
  std::string what;
};

struct VerifyOutcome {
  int64_t samples = 0;                 // Read, damaged ones included; not sealed ones as far as they are committed.
  int64_t rows = 0;                    // Recorded rows whose bytes are as they were appended.
  int64_t bytes = 0;                   // As they came.
  std::vector<DamagedSample> damaged;  // By id.
};

// Reads every row of the run and compares every CRC32C, beside running appends. Errors of Run::List and Run::Read;
// damage is no error.
absl::StatusOr<VerifyOutcome> VerifyRun(Run& run, const VerifyOptions& options = {});

// Reads every file of an exported run and compares its CRC32C with the index; needs no server. Of `options` the groups
// and the progress are used. Errors of ReadExportedRun (proto/exported/exported_run.h): what is there is no exported
// run, or its index is damaged.
absl::StatusOr<VerifyOutcome> VerifyExportedRun(const std::filesystem::path& directory,
                                                const VerifyOptions& options = {});

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_CHECKPOINT_H_
