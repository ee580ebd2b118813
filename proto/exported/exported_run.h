// An exported run: a directory of rows that needs no server. proto/FORMAT.md, "Exported runs", is the specification.
//
//   writer: RunExporter::Create or Continue → Add each sample → Finish     reader: ReadExportedRun → ReadExportedFile
//
// The marker DONE comes last and carries the CRC32C of the index, the index that of every file: what is read is what
// was written, or an error says that it is not.
#ifndef PROTO_EXPORTED_EXPORTED_RUN_H_
#define PROTO_EXPORTED_EXPORTED_RUN_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
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

struct ExportedSample {
  std::string sample;
  int64_t group = 0;
  int64_t num_tokens = 0;  // T, at least 1: it has rows 0 … T − 2.
  int64_t revision = 0;
  uint64_t content_id = 0;
  std::vector<RowRange> unrecorded;  // Normal list, inside its rows.
  std::vector<WeightSpan> weights;
  std::vector<TokenCheck> token_checks;  // Those that are known.
  bool released = false;                 // The run gave it back, trusting this directory.
  // Of its .npy file: a name without a folder, its size and CRC32C. Filled by RunExporter.
  std::string file;
  int64_t file_bytes = 0;
  uint32_t crc32c = 0;

  int64_t recorded_rows() const { return num_tokens - 1 - TotalRows(unrecorded); }
};

struct ExportedRun {
  std::string run;
  Producer producer = Producer::kRollout;
  Geometry geometry;
  std::vector<ExportedSample> samples;  // In the order written; no id twice.
};

// Writes one directory, which no other exporter does meanwhile. Every file gets its name when it is on the disk, the
// index and then the marker come last, and an export before this one can be read until then: the process may end at any
// moment, and Continue goes on. Not thread-safe.
class RunExporter {
 public:
  // Makes the directory if it is not there. ALREADY_EXISTS if it is not empty; INTERNAL with what the system says.
  static absl::StatusOr<std::unique_ptr<RunExporter>> Create(const std::filesystem::path& directory, std::string run,
                                                             Producer producer, Geometry geometry);
  // Goes on with what is there: nothing, an exported run, or what an export left that did not end (its files are read
  // and checked). FAILED_PRECONDITION (kGeometryMismatch, or kField naming run or producer) if another run is there,
  // ALREADY_EXISTS for something else, ABORTED while another exporter is there; DATA_LOSS for a damaged index. `files`
  // must outlive the exporter.
  static absl::StatusOr<std::unique_ptr<RunExporter>> Continue(const std::filesystem::path& directory, std::string run,
                                                               Producer producer, Geometry geometry,
                                                               DurableFiles& files = DurableFiles::Real());

  // What is there, samples of exports before this one included, in the order written.
  const ExportedRun& contents() const { return run_; }
  // Null if it is not there, or if its file is gone.
  const ExportedSample* Find(const std::string& sample) const;

  // ids: of the recorded rows, [rows][MoE layers][K], K and dtype as of the geometry's arrays, little-endian; slots
  // beyond a layer's own K are 0. In place of what an export before this one wrote of the sample. INVALID_ARGUMENT
  // (kLength, kField) for what does not fit the geometry or the rows, or an id for the second time; INTERNAL as above.
  // Ids are not checked.
  absl::Status Add(ExportedSample sample, absl::Span<const uint8_t> ids);
  // Of a sample that is there: its group can change without its rows.
  void SetGroup(const std::string& sample, int64_t group);
  // Of a sample that is there; see ExportedSample.
  void SetReleased(const std::string& sample, bool released);
  // These will not be in the index, but for released ones, which stay. How many they are.
  int64_t DropIf(const std::function<bool(const ExportedSample&)>& gone);
  // The index and then the marker: now the run can be read. Files that it does not name are removed. DATA_LOSS
  // (kChecksum) naming a sample of a finished export whose file is gone, if it was neither added again nor dropped.
  absl::Status Finish();

 private:
  RunExporter(std::filesystem::path directory, ExportedRun run, DurableFiles& files)
      : directory_(std::move(directory)), run_(std::move(run)), files_(files) {}

  absl::Status Begin();
  void IndexPlaces();
  absl::Status CheckFits(const ExportedSample& sample, absl::Span<const uint8_t> ids) const;
  absl::Status StartJournal(const std::set<std::string>& journalled);
  absl::Status WriteIndex();
  absl::Status RemoveLeftovers();

  const std::filesystem::path directory_;
  ExportedRun run_;
  DurableFiles& files_;
  DirectoryLock lock_;
  std::unordered_map<std::string, size_t> places_;  // In run_.samples.
  std::set<std::string> added_;                     // By this exporter.
  std::set<std::string> damaged_;
  int64_t next_file_ = 0;
  bool finished_ = false;  // The directory's marker and index are those of run_.
};

// The index of a directory. FAILED_PRECONDITION: kNotCommitted without a marker (the export did not end, or there is no
// such directory), kVersionMismatch for another version of the format; DATA_LOSS (kChecksum) for an index that is not
// as it was written. Reads no rows.
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

}  // namespace routing_replay

#endif  // PROTO_EXPORTED_EXPORTED_RUN_H_
