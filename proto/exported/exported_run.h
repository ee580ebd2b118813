// An exported run: a directory of rows that needs no server. proto/FORMAT.md, "Exported runs", is the specification.
//
//   writer: RunExporter::Create → Add or Take each sample → Finish     reader: ReadExportedRun → ReadExportedIds
//
// An export is written to "DIRECTORY.part", synced, and renamed to DIRECTORY, so that a directory with this name is
// always complete. Each export is a new directory. It takes over unchanged samples from the previous one by hard links:
// a checkpoint every 10 steps writes only the routes of these steps, and each directory can be removed without harm to
// the others.
#ifndef PROTO_EXPORTED_EXPORTED_RUN_H_
#define PROTO_EXPORTED_EXPORTED_RUN_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {

inline constexpr char kExportIndex[] = "index.json";

struct ExportedSample {
  std::string sample;
  int64_t group = 0;
  int64_t num_tokens = 0;  // T, at least 1: it has rows 0 … T − 2.
  int64_t revision = 0;
  uint64_t content_id = 0;
  std::vector<RowRange> unrecorded;  // Normal list (row_range.h) inside rows 0 … T − 2.
  std::vector<WeightSpan> weights;
  std::vector<TokenCheck> token_checks;  // The token checks that are known; may be empty.
  // The sample's .npy file: a name without a directory, its size and CRC32C. Set by RunExporter.
  std::string file;
  int64_t file_bytes = 0;
  uint32_t crc32c = 0;

  int64_t recorded_rows() const { return num_tokens - 1 - TotalRows(unrecorded); }
};

struct ExportedRun {
  std::string run;
  Producer producer = Producer::kRollout;
  Geometry geometry;
  std::vector<ExportedSample> samples;  // In the order in which they were written; each id is listed once.
};

// Writes one directory; no other exporter may write it at the same time. If the process or the machine ends early,
// there is no directory of that name, and the next export of that name removes "DIRECTORY.part". Not thread-safe.
class RunExporter {
 public:
  // ALREADY_EXISTS if the directory exists and is not empty, or if DIRECTORY.part holds files that no export writes;
  // an error of the file system has the code of absl::ErrnoToStatus and the system's message.
  static absl::StatusOr<std::unique_ptr<RunExporter>> Create(const std::filesystem::path& directory, std::string run,
                                                             Producer producer, Geometry geometry);
  // Removes an unfinished export.
  ~RunExporter();

  const ExportedRun& contents() const { return run_; }

  // `ids` are those of the recorded rows: [rows][MoE layers][K], little-endian, with the K and dtype of the geometry's
  // arrays; slots beyond a layer's own K are 0. Errors of the file system as for Create. Neither the ids nor their
  // number are checked; each sample may be added or taken over once.
  absl::Status Add(ExportedSample sample, absl::Span<const uint8_t> ids);
  // Takes over a sample from another export of this run with the same geometry: hard links its file, or copies it if
  // the file system has no hard links. `sample` is its entry in that export's index; only the group may differ.
  // DATA_LOSS (kChecksum) naming the sample if its file is gone, has another size or, when copied, another CRC.
  absl::Status Take(const std::filesystem::path& from, ExportedSample sample);
  // Writes the index, syncs everything and gives the directory its name. After an error start a new export.
  absl::Status Finish();

 private:
  RunExporter(std::filesystem::path directory, std::filesystem::path part, ExportedRun run)
      : directory_(std::move(directory)), part_(std::move(part)), run_(std::move(run)) {}

  absl::Status WriteFile(const ExportedSample& sample, absl::Span<const absl::Span<const uint8_t>> parts);
  absl::Status SyncWritten();

  const std::filesystem::path directory_, part_;
  ExportedRun run_;
  std::vector<std::filesystem::path> written_;  // Files that are not synced yet.
  int64_t written_bytes_ = 0;                   // Their size in all.
  bool finished_ = false;
};

// Reads the index of a directory. FAILED_PRECONDITION: kNotCommitted if there is no index (no such directory, or not an
// export), kVersionMismatch for another version of the format. DATA_LOSS (kChecksum) if the index was changed since it
// was written. INVALID_ARGUMENT (kField) for invalid fields. Reads no rows.
absl::StatusOr<ExportedRun> ReadExportedRun(const std::filesystem::path& directory);

// One sample's .npy file, checked. DATA_LOSS (kChecksum) naming the sample if the file is gone or was changed since it
// was written.
absl::StatusOr<std::vector<uint8_t>> ReadExportedFile(const std::filesystem::path& directory,
                                                      const ExportedSample& sample);

// The ids in one sample's file: [recorded rows][MoE layers][K], as for RunExporter::Add. Errors of ReadExportedFile.
// INVALID_ARGUMENT naming the sample: kShape if the file has another shape or dtype, or the reason of ParseNpyHeader.
absl::StatusOr<std::vector<uint8_t>> ReadExportedIds(const std::filesystem::path& directory, const Geometry& geometry,
                                                     const ExportedSample& sample);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_EXPORTED_EXPORTED_RUN_H_
