// An exported run: a directory of rows that needs no server. proto/FORMAT.md, "Exported runs", is the specification.
//
//   writer: RunExporter::Create → Add each sample → Finish          reader: ReadExportedRun → ReadExportedFile
//
// The marker DONE comes last and carries the CRC32C of the index, the index that of every file: what is read is what
// was written, or an error says that it is not.
#ifndef PROTO_EXPORTED_EXPORTED_RUN_H_
#define PROTO_EXPORTED_EXPORTED_RUN_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
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

// Writes one directory. Not thread-safe.
class RunExporter {
 public:
  // Makes the directory if it is not there. ALREADY_EXISTS if it is not empty; INTERNAL with what the system says.
  static absl::StatusOr<std::unique_ptr<RunExporter>> Create(const std::filesystem::path& directory, std::string run,
                                                             Producer producer, Geometry geometry);

  // ids: of the recorded rows, [rows][MoE layers][K], K and dtype as of the geometry's arrays, little-endian; slots
  // beyond a layer's own K are 0. INVALID_ARGUMENT (kLength, kField) for what does not fit the geometry or
  // the rows, or an id for the second time; INTERNAL as above. Ids are not checked.
  absl::Status Add(ExportedSample sample, absl::Span<const uint8_t> ids);
  // The index and then the marker: now the run can be read.
  absl::Status Finish();

 private:
  RunExporter(std::filesystem::path directory, ExportedRun run);

  const std::filesystem::path directory_;
  ExportedRun run_;
  std::set<std::string> names_;
};

// The index of a directory. FAILED_PRECONDITION: kNotCommitted without a marker (the export did not end, or there is no
// such directory), kVersionMismatch for another version of the format; DATA_LOSS (kChecksum) for an index that is not
// as it was written. Reads no rows.
absl::StatusOr<ExportedRun> ReadExportedRun(const std::filesystem::path& directory);

// One sample's .npy file, checked. DATA_LOSS (kChecksum) naming the sample if it is not as it was written, or gone.
absl::StatusOr<std::vector<uint8_t>> ReadExportedFile(const std::filesystem::path& directory,
                                                      const ExportedSample& sample);

}  // namespace routing_replay

#endif  // PROTO_EXPORTED_EXPORTED_RUN_H_
