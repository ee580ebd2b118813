// An exported run: a directory of rows that needs no server. proto/FORMAT.md, "Exported runs", is the specification.
//
//   writer: RunExporter::Create → Add or Take each sample → Finish     reader: ReadExportedRun → ReadExportedIds
//
// An export is written as "DIRECTORY.part", synced, and renamed, so that a directory of the name that was asked for is
// whole. The next export is another directory: what it has in common with this one it takes over by hard links, so that
// a checkpoint every 10 steps of 40 GB of routes writes the routes of 10 steps, and any of the directories may be
// removed.
#ifndef PROTO_EXPORTED_EXPORTED_RUN_H_
#define PROTO_EXPORTED_EXPORTED_RUN_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_set>
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
  std::vector<RowRange> unrecorded;  // Normal list, inside its rows.
  std::vector<WeightSpan> weights;
  std::vector<TokenCheck> token_checks;  // Those that are known.
  // Of its .npy file: a name without a folder, its size and CRC32C. Set by RunExporter.
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

// Writes one directory, which no other exporter writes at the same time. The process, or the machine, may end at any
// moment: then there is no directory of that name, and "DIRECTORY.part" is removed by the next export of that name. Not
// thread-safe.
class RunExporter {
 public:
  // ALREADY_EXISTS if the directory is there and not empty, or if DIRECTORY.part holds files that no export writes;
  // INVALID_ARGUMENT and PERMISSION_DENIED for a path that cannot be a directory; INTERNAL with what the system says.
  static absl::StatusOr<std::unique_ptr<RunExporter>> Create(const std::filesystem::path& directory, std::string run,
                                                             Producer producer, Geometry geometry);
  // Removes what was not finished.
  ~RunExporter();

  const ExportedRun& contents() const { return run_; }

  // ids: of the recorded rows, [rows][MoE layers][K], K and dtype as of the geometry's arrays, little-endian; slots
  // beyond a layer's own K are 0. INVALID_ARGUMENT (kLength, kField) for what does not fit the geometry or the rows, or
  // an id for the second time; INTERNAL as above. Ids are not checked.
  absl::Status Add(ExportedSample sample, absl::Span<const uint8_t> ids);
  // A sample of another export of this run, whose geometry is the same: its file by a hard link, or, where the file
  // system has none, by a copy. `sample` is as the index there says, but for its group. DATA_LOSS (kChecksum) naming
  // the sample if its file is gone or has another size; nothing was taken then.
  absl::Status Take(const std::filesystem::path& from, ExportedSample sample);
  // The index; then all of it is on the disk, and has its name. After an error start a new export.
  absl::Status Finish();

 private:
  RunExporter(std::filesystem::path directory, std::filesystem::path part, ExportedRun run)
      : directory_(std::move(directory)), part_(std::move(part)), run_(std::move(run)) {}

  absl::Status CheckFits(const ExportedSample& sample) const;
  absl::Status WriteFile(const ExportedSample& sample, absl::Span<const absl::Span<const uint8_t>> parts);
  absl::Status SyncWritten();
  void Keep(ExportedSample sample);

  const std::filesystem::path directory_, part_;
  ExportedRun run_;
  std::unordered_set<std::string> names_;       // Of its samples.
  std::vector<std::filesystem::path> written_;  // Not synced yet, …
  int64_t written_bytes_ = 0;                   // … of so many bytes.
  bool finished_ = false;
};

// The index of a directory. FAILED_PRECONDITION: kNotCommitted without an index (there is no such directory, or it is
// no export), kVersionMismatch for another version of the format; DATA_LOSS (kChecksum) for an index that is not as it
// was written; INVALID_ARGUMENT (kField) for one that says nonsense. Reads no rows.
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
