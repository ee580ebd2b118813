// What an import decides for one sample; import.cc drives it for all. Knows no gRPC: whoever drives it asks, reads and
// appends.
//
//   Open → for each sample: Begin with what Stat says → to_compare, if not empty: read and Compare → Appends
#ifndef CLIENT_CHECKPOINT_IMPORT_H_
#define CLIENT_CHECKPOINT_IMPORT_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/reader/decoded_rows.h"
#include "proto/exported/exported_run.h"
#include "routing_replay/client.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay::client {

// One append of an import. Views of the sample's file.
struct ImportAppend {
  AppendOptions options;  // Without token ids …
  std::vector<uint32_t> tokens;
  TensorDescription tensor;
  absl::Span<const uint8_t> ids;

  // … which are these.
  AppendOptions Options() const;
};

// One sample on its way into a run. Immutable but for Compare.
class SampleImport {
 public:
  // `there`: what the run has of the sample, if anything. Reads and checks the file, unless the run has the very
  // content that was exported. `geometry` and `sample` must outlive it. Errors of ReadExportedIds; ALREADY_EXISTS
  // (kConflictingRows) naming the first row of which the run says something else: another end, other unrecorded rows,
  // other weights.
  static absl::StatusOr<SampleImport> Begin(const std::filesystem::path& directory, const Geometry& geometry,
                                            Producer producer, const ExportedSample& sample,
                                            const std::optional<SampleState>& there);

  // Rows that the run has, to be read of all layers and compared; normal list.
  const std::vector<RowRange>& to_compare() const { return to_compare_; }
  // What was read. ALREADY_EXISTS (kConflictingRows) naming sample, row and layer of the first route that differs;
  // DATA_LOSS or FAILED_PRECONDITION for rows that cannot be read.
  absl::Status Compare(const SamplePlanes& read) const;

  // In the order in which they are to be made; empty if the run has all of it. At most some MB each.
  std::vector<ImportAppend> Appends() const;

 private:
  SampleImport(const Geometry& geometry, Producer producer, const ExportedSample& sample)
      : geometry_(&geometry), producer_(producer), sample_(&sample) {}

  absl::Status CheckState(const SampleState& there);
  int64_t row_bytes() const;
  // The recorded rows of `rows` in the file.
  absl::Span<const uint8_t> IdsOf(RowRange rows) const;
  int64_t RecordedBefore(int64_t row) const;
  ImportAppend MakeAppend(RowRange rows) const;
  absl::Status Conflict(int64_t row, std::optional<int32_t> layer, absl::string_view what) const;

  const Geometry* geometry_;
  Producer producer_;
  const ExportedSample* sample_;
  ExportedIds ids_;
  int64_t committed_ = 0;
  int64_t revision_ = 0;
  bool sealed_ = false;
  bool other_group_ = false;  // The run has it in another group.
  std::vector<RowRange> to_compare_;
};

// Token ids of `rows` positions whose token check at the end is `check`: zeros, then the one that makes it so. rows >
// 0.
std::vector<uint32_t> TokensWithCheck(int64_t rows, uint32_t check);

}  // namespace routing_replay::client

#endif  // CLIENT_CHECKPOINT_IMPORT_H_
