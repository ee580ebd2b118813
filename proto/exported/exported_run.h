// An exported run: a directory of rows that needs no server. proto/FORMAT.md, "Exported runs", is the specification.
//
//   writer: RunExporter::Create or Continue → Add each sample → Finish     reader: ReadExportedRun → ReadExportedFile
//
// The marker DONE comes last; it names an index and carries its CRC32C, the index that of every file: what is read is
// what was written, or an error says that it is not.
#ifndef PROTO_EXPORTED_EXPORTED_RUN_H_
#define PROTO_EXPORTED_EXPORTED_RUN_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/exported/directory_lock.h"
#include "proto/exported/durable_files.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_id.h"
#include "routing_replay/wire/sample_state.h"

namespace routing_replay {
inline namespace wire {

struct ExportedSample {
  std::string sample;
  int64_t group = 0;
  int64_t num_tokens = 0;  // T, at least 1: it has rows 0 … T − 2.
  int64_t revision = 0;
  uint64_t content_id = 0;
  std::vector<RowRange> unrecorded;  // Normal list, inside its rows.
  std::vector<WeightSpan> weights;
  std::vector<TokenCheck> token_checks;  // Those that are known.
  // Of its .npy file: a name without a folder, its size and CRC32C. Filled by RunExporter.
  std::string file;
  int64_t file_bytes = 0;
  uint32_t crc32c = 0;
  // The run gave it back, trusting this directory: no other copy needs to be anywhere.
  bool released = false;

  int64_t recorded_rows() const { return num_tokens - 1 - TotalRows(unrecorded); }
};

struct ExportedRun {
  std::string run;
  Producer producer = Producer::kRollout;
  Geometry geometry;
  int64_t generation = 0;               // Each index of a directory has a higher one. Filled by RunExporter.
  std::vector<ExportedSample> samples;  // In the order written; no id twice.
};

// Writes one directory, which no other exporter does meanwhile. The export before this one can be read until the marker
// is replaced in one step, and this one from then on: the process, or the machine, may end at any moment, and Continue
// goes on. Of what is in the directory it writes over nothing, and removes only what its own indexes and journals name:
// files that the index before the last one named, one export later, so that a reader of the last one still finds its
// files. Not thread-safe.
class RunExporter {
 public:
  // Makes the directory if it is not there. ALREADY_EXISTS if it is not empty; INVALID_ARGUMENT and PERMISSION_DENIED
  // for a path that cannot be a directory of ours; INTERNAL with what the system says.
  static absl::StatusOr<std::unique_ptr<RunExporter>> Create(const std::filesystem::path& directory, std::string run,
                                                             Producer producer, Geometry geometry);
  // Goes on with what is there: nothing, an exported run, or what an export left that did not end (its files are read
  // and checked). What is refused is left as it is: FAILED_PRECONDITION (kGeometryMismatch, or kField naming run or
  // producer) if another run is there, or one of another version (kVersionMismatch), or if the file system has no
  // locks; ALREADY_EXISTS where nothing shows that it is an exported run; ABORTED while another exporter is there;
  // DATA_LOSS (kChecksum) for a damaged index; errors of the path as above. `files` must outlive the exporter.
  static absl::StatusOr<std::unique_ptr<RunExporter>> Continue(const std::filesystem::path& directory, std::string run,
                                                               Producer producer, Geometry geometry,
                                                               DurableFiles& files = DurableFiles::Real());

  // What is there, samples of exports before this one included, in the order written.
  const ExportedRun& contents() const { return run_; }
  // Null if it is not there, or damaged.
  const ExportedSample* Find(const std::string& sample) const;
  // Samples of an export before this one whose files are gone, cut, or known to hold something else. They stay in the
  // index, which names the file that would be needed, until they are added again or dropped.
  const std::set<std::string>& damaged() const { return damaged_; }
  // Reads the sample's file and compares size and CRC32C with its entry: whether this directory can be trusted with it.
  // DATA_LOSS (kChecksum) naming the sample if it does not fit, which is damaged from then on; NOT_FOUND if it is not
  // there.
  absl::Status CheckFile(const std::string& sample);

  // ids: of the recorded rows, [rows][MoE layers][K], K and dtype as of the geometry's arrays, little-endian; slots
  // beyond a layer's own K are 0. In place of what an export before this one wrote of the sample. INVALID_ARGUMENT
  // (kLength, kField) for what does not fit the geometry or the rows, or an id for the second time; INTERNAL as above.
  // Ids are not checked.
  absl::Status Add(ExportedSample sample, absl::Span<const uint8_t> ids);
  // Of a sample that is there: its group can change without its rows.
  void SetGroup(const std::string& sample, int64_t group);
  // Of a sample that is there, from its next index on; see ExportedSample. Adding it again takes it back.
  void SetReleased(const std::string& sample, bool released);
  // These will not be in the index, but for released ones, which stay. How many they are.
  int64_t DropIf(const std::function<bool(const ExportedSample&)>& gone);
  // The index and then the marker: now the run can be read, and is on the disk with all names that lead to it. Then
  // removes what no reader needs any more; what cannot be removed is tried again by the next export. DATA_LOSS
  // (kChecksum) naming the first of damaged(), if it is not empty: all else that was added is in the directory then,
  // which is as whole as it can be. After any other error, the run can be read as before.
  absl::Status Finish();

 private:
  RunExporter(std::filesystem::path directory, ExportedRun run, DurableFiles& files)
      : directory_(std::move(directory)), run_(std::move(run)), files_(files) {}

  absl::Status Begin();
  void IndexPlaces();
  absl::Status CheckFits(const ExportedSample& sample, absl::Span<const uint8_t> ids) const;
  absl::Status StartJournal();
  absl::Status AppendToJournal(const ExportedSample& sample);
  absl::Status SyncWritten();
  absl::Status WriteIndex();
  void RemoveUnmarkedIndexes();
  void RemoveLeftovers();
  // The files that the index names, if it is one of this run.
  std::optional<std::set<std::string>> FilesOf(int64_t index) const;
  bool RemoveFiles(const std::set<std::string>& files, const std::set<std::string>& but);

  const std::filesystem::path directory_;
  ExportedRun run_;
  DurableFiles& files_;
  DirectoryLock lock_;
  std::unordered_map<std::string, size_t> places_;  // In run_.samples.
  std::set<std::string> added_;                     // By this exporter.
  std::set<std::string> damaged_;
  int64_t next_file_ = 0;
  int64_t index_ = 0;          // The number of the index that holds; 0: none.
  int64_t former_index_ = 0;   // … of the one that held before.
  std::set<int64_t> indexes_;  // All that are there.
  bool is_unsure_ = false;     // The marker may name an index above index_.
  bool has_journal_ = false;   // Of what is added now.
  bool journal_is_torn_ = false;
  std::vector<std::string> journal_files_;      // Named in the journal.
  std::vector<std::filesystem::path> written_;  // Not synced yet, …
  int64_t written_bytes_ = 0;                   // … of so many bytes.
  absl::Status sync_status_;                    // What a sync lost once, a second one does not find.
  bool finished_ = false;                       // The directory's marker and index are those of run_.
};

// The index of a directory, also while exports end. FAILED_PRECONDITION: kNotCommitted without a marker (no export
// ended, or there is no such directory), kVersionMismatch for another version of the format; DATA_LOSS (kChecksum) for
// an index that is not as it was written. Reads no rows. The files that it names stay until a second export into the
// directory has ended after this one, and those of samples that do not change longer.
absl::StatusOr<ExportedRun> ReadExportedRun(const std::filesystem::path& directory);

// One sample's .npy file, checked. DATA_LOSS (kChecksum) naming the sample if it is not as it was written, or gone.
absl::StatusOr<std::vector<uint8_t>> ReadExportedFile(const std::filesystem::path& directory,
                                                      const ExportedSample& sample);

// The ids in one sample's file.
class ExportedIds {
 public:
  ExportedIds() = default;
  ExportedIds(std::vector<uint8_t> file, size_t offset) : file_(std::move(file)), offset_(offset) {}
  // [recorded rows][MoE layers][K], as RunExporter::Add takes them.
  absl::Span<const uint8_t> ids() const { return absl::MakeConstSpan(file_).subspan(offset_); }

 private:
  std::vector<uint8_t> file_;
  size_t offset_ = 0;
};

// Errors of ReadExportedFile; INVALID_ARGUMENT (kShape) naming a sample whose file was never as the index says.
absl::StatusOr<ExportedIds> ReadExportedIds(const std::filesystem::path& directory, const Geometry& geometry,
                                            const ExportedSample& sample);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_EXPORTED_RUN_H_
