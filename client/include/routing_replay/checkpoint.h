// Writes a run to a directory and reads it back, for checkpoints and to move a run to another server. The directory is
// an exported run (proto/FORMAT.md), which DirectorySource of the trainer can read.
//
//   auto run = client->JoinRun("grpo-42");
//   ExportRun(**run, "/checkpoints/step-100", {.groups = {{0, 101}}});
//   run->ReleaseGroups(0, 101);
//   ExportRun(**run, "/checkpoints/step-110", {.groups = {{0, 111}}, .previous = "/checkpoints/step-100"});
//   ImportRun(*client, "/checkpoints/step-110");
//
// An interrupted export leaves no directory of that name; an interrupted import can be repeated.
#ifndef ROUTING_REPLAY_CHECKPOINT_H_
#define ROUTING_REPLAY_CHECKPOINT_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "routing_replay/client.h"

namespace routing_replay {

struct ExportOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Half-open; absent: all.
  Producer producer = Producer::kRollout;
  // The directory of an earlier export of the same run. Samples that have not changed since are hard-linked from there,
  // and so are samples of these groups that the run has released since. Empty: everything is read from the run.
  std::filesystem::path previous;
};

struct ExportOutcome {
  int64_t samples = 0;  // Samples in the directory.
  int64_t written = 0;  // Samples read from the run and written; the others are from `previous`.
  // Samples of the run that were left out: they were not sealed, or were begun again during the export.
  int64_t unsealed = 0;
  int64_t bytes = 0;  // Size of the rows written, in the dtype of storage.
};

// Writes the sealed samples of the run into a new directory. Appends to the run may continue meanwhile. Until the
// export is complete, the directory is named "DIRECTORY.part". Rows that several samples share are written for each
// sample. Needs memory for one portion (some tens of MB), or for one sample if that is larger.
//
// Errors: those of RunExporter and of Run::Read (nothing is retried after UNAVAILABLE or DEADLINE_EXCEEDED: call
// again), and UNAVAILABLE if one server of "shard:" does not answer for about a second; ALREADY_EXISTS if the directory
// is not empty; for `previous` those of ReadExportedRun, and FAILED_PRECONDITION (kField, kGeometryMismatch) if it is
// an export of another run. If a server lost the run before or during the export, the error is that of Run::List. These
// errors leave no new directory. DATA_LOSS names a sample that the store or the previous export lost: then the
// directory exists and holds all other samples.
absl::StatusOr<ExportOutcome> ExportRun(Run& run, const std::filesystem::path& directory,
                                        const ExportOptions& options = {});

struct ImportOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Which samples to import; half-open, absent: all.
  std::string run;                                    // Empty: the name under which the run was exported.
};

struct ImportOutcome {
  std::string run;
  int64_t samples = 0;   // Samples of these groups in the directory; the run has all of them now.
  int64_t appended = 0;  // Samples to which this call appended rows or the seal.
  int64_t bytes = 0;     // Size of the rows appended, in the dtype of storage.
};

// Appends the samples of the directory to a run, and creates the run with default settings if it does not exist. If the
// run already has rows of a sample, these must equal the rows in the directory (the server compares them), and only the
// missing rows are added. A sample is skipped if its content id, revision, group and number of tokens match in both.
//
// A sample keeps its rows, unrecorded rows, weights, group, seal and the token check at its end. An export has only
// this check, not the tokens, but the protocol takes checks only with tokens. So the import appends a made-up token
// with the last row, chosen so that the CRC gets the right value. Token checks at earlier rows are lost, because an
// export does not hold them. Revision, content id and engine ("import") are those of a new sample, and
// prefixes become copies.
//
// Errors: those of ReadExportedRun and ReadExportedFile, OpenRun and Appender; ALREADY_EXISTS (kConflictingRows) names
// a sample whose rows in the run differ, to which nothing is appended; FAILED_PRECONDITION (kGeometryMismatch).
absl::StatusOr<ImportOutcome> ImportRun(Client& client, const std::filesystem::path& directory,
                                        const ImportOptions& options = {});

struct VerifyOptions {
  std::optional<std::pair<int64_t, int64_t>> groups;  // Half-open; absent: all.
  Producer producer = Producer::kRollout;
};

struct DamagedSample {
  std::string sample;
  // Where the client's CRC check found the first damage: the first row of the damaged piece and the global id of its
  // layer. Absent if the server found the damage, and for files, which have one CRC for the whole file.
  std::optional<int64_t> row;
  std::optional<int32_t> layer;
  std::string what;
};

struct VerifyOutcome {
  int64_t samples = 0;                 // Samples read, damaged and unsealed ones included.
  int64_t rows = 0;                    // Recorded rows whose CRCs match.
  int64_t bytes = 0;                   // Bytes received from the server, or read from files.
  std::vector<DamagedSample> damaged;  // Sorted by id.
};

// Reads every committed row of the run and checks every CRC32C. Appends to the run may continue meanwhile. Fails with
// the errors of Run::List and Run::Read, and UNAVAILABLE as ExportRun; damaged samples are part of the outcome, not an
// error.
absl::StatusOr<VerifyOutcome> VerifyRun(Run& run, const VerifyOptions& options = {});

// Reads every file of an exported run and compares its CRC32C with the index; needs no server. Uses only `groups` of
// the options. Fails with the errors of ReadExportedRun (proto/exported/exported_run.h): the directory
// is not an exported run, or its index is damaged.
absl::StatusOr<VerifyOutcome> VerifyExportedRun(const std::filesystem::path& directory,
                                                const VerifyOptions& options = {});

}  // namespace routing_replay

#endif  // ROUTING_REPLAY_CHECKPOINT_H_
