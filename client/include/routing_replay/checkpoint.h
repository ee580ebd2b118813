// Writes runs to directories and reads them back: checkpoints of a run, and moves from one server to another. The
// directory is an exported run (proto/FORMAT.md), which DirectorySource of the trainer can read.
//
//   auto run = client->JoinRun("grpo-42");
//   ExportRun(**run, "/checkpoints/step-100", {.groups = {{0, 101}}});
//   run->ReleaseGroups(0, 101);
//   ExportRun(**run, "/checkpoints/step-110", {.groups = {{0, 111}}, .previous = "/checkpoints/step-100"});
//   ImportRun(*client, "/checkpoints/step-110");
//
// An export that ends early leaves no directory of that name; an import that ends early can be repeated.
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
  int64_t samples = 0;  // Finished so far, of …
  int64_t total = 0;
  int64_t bytes = 0;  // Of the rows moved so far, in the dtype of storage.
};
// Called on the thread that called the function.
using OnCheckpointProgress = std::function<void(const CheckpointProgress&)>;

struct ExportOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Half-open; absent: all.
  Producer producer = Producer::kRollout;
  // An earlier export of the same run. Samples that have not changed since are taken from there by hard links. So are
  // samples of these groups that the run has released since. Empty: everything is read from the run.
  std::filesystem::path previous;
  std::chrono::milliseconds read_timeout = std::chrono::seconds(120);  // For one portion, some tens of MB.
  OnCheckpointProgress on_progress;
};

struct ExportOutcome {
  int64_t samples = 0;  // In the directory.
  int64_t written = 0;  // … of them read from the run and written; the others come from the previous export.
  // Samples of the run that were left out: they were not sealed, or were begun again during the export.
  int64_t unsealed = 0;
  int64_t bytes = 0;  // Of the rows written, in the dtype of storage.
};

// Writes the sealed samples of the run into a new directory while appends go on. Until this returns the directory is
// named "DIRECTORY.part"; then it appears whole under its own name. Rows that samples share are written with each of
// them. Memory: the rows of one portion, or of one sample if that is larger.
//
// Errors: those of RunExporter and of Run::Read (UNAVAILABLE and DEADLINE_EXCEEDED are final: call again);
// ALREADY_EXISTS if the directory is not empty; for `previous` those of ReadExportedRun, and FAILED_PRECONDITION
// (kField, kGeometryMismatch) if it is an export of another run. If a server lost the run, before or during the export,
// the error of Run::List. No directory is left after these errors. DATA_LOSS names a sample that the store or the
// previous export lost: then the directory exists and holds all other samples.
absl::StatusOr<ExportOutcome> ExportRun(Run& run, const std::filesystem::path& directory,
                                        const ExportOptions& options = {});

struct ImportOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Of the directory's samples; half-open, absent: all.
  std::string run;                                    // Empty: the name under which it was exported.
  RunSettings settings;                               // Used if the run has to be made.
  AppenderOptions appender;                           // on_outcome is ignored.
  OnCheckpointProgress on_progress;
};

struct ImportOutcome {
  std::string run;
  int64_t samples = 0;   // Samples of the directory, in these groups, that the run has now.
  int64_t appended = 0;  // … those to which this call appended rows or the seal.
  int64_t bytes = 0;     // Of the rows appended, in the dtype of storage.
};

// Appends the samples of the directory to a run; makes the run if it does not exist. If the run already has rows of a
// sample, the server compares them row by row; they must be equal, and the append continues where they end. A sample
// with the same content id is skipped.
//
// A sample keeps its rows, unrecorded rows, weights, group, seal and the token check at its end. The protocol takes
// token checks only with tokens, but one token can continue a CRC to any value: the last row gets the token that does
// this. Token checks at earlier rows, which only the first server knew, are lost. Revision, content id and provenance
// (engine "import") are those of a new sample, and prefixes become copies.
//
// Errors: those of ReadExportedRun and ReadExportedFile, OpenRun and Appender; ALREADY_EXISTS (kConflictingRows) names
// a sample whose rows in the run differ, to which nothing is appended; FAILED_PRECONDITION (kGeometryMismatch).
absl::StatusOr<ImportOutcome> ImportRun(Client& client, const std::filesystem::path& directory,
                                        const ImportOptions& options = {});

struct VerifyOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Half-open; absent: all.
  Producer producer = Producer::kRollout;
  std::chrono::milliseconds read_timeout = std::chrono::seconds(120);  // For one portion, some tens of MB.
  OnCheckpointProgress on_progress;                                    // Its bytes are those read so far.
};

struct DamagedSample {
  std::string sample;
  // The first damage that the CRC check on this side found: the first row of the piece, and the global id of the layer.
  // Absent if the server found the damage, and for files, which have one CRC each.
  std::optional<int64_t> row;
  std::optional<int32_t> layer;
  std::string what;
};

struct VerifyOutcome {
  int64_t samples = 0;                 // Samples read, damaged ones included; of unsealed samples the committed rows.
  int64_t rows = 0;                    // Recorded rows whose CRCs match.
  int64_t bytes = 0;                   // As they were received.
  std::vector<DamagedSample> damaged;  // By id.
};

// Reads every row of the run and compares every CRC32C, while appends go on. Errors of Run::List and Run::Read; damaged
// samples are part of the outcome, not an error.
absl::StatusOr<VerifyOutcome> VerifyRun(Run& run, const VerifyOptions& options = {});

// Reads every file of an exported run and compares its CRC32C with the index; needs no server. Uses only the groups and
// the progress of `options`. Errors of ReadExportedRun (proto/exported/exported_run.h): the directory is not an
// exported run, or its index is damaged.
absl::StatusOr<VerifyOutcome> VerifyExportedRun(const std::filesystem::path& directory,
                                                const VerifyOptions& options = {});

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_CHECKPOINT_H_
