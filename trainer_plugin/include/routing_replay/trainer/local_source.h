// A source of rows that the host holds already, as arrays from Ray, TransferQueue or a pickle: the plugin without the
// service. The same checks, the same staging.
//
//   LocalSource source(geometry);
//   source.Add({.sample = "step1/0"}, {.dtype = DType::kI32, .shape = {rows, layers, K}}, bytes);
//   absl::StatusOr<StagedRows> staged = source.Fetch(plan, sequences, options);
#ifndef ROUTING_REPLAY_TRAINER_LOCAL_SOURCE_H_
#define ROUTING_REPLAY_TRAINER_LOCAL_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/buffer_layout.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/trainer/staging.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/read_request.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_id.h"
#include "routing_replay/wire/sample_state.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay::trainer {

// What is said of the rows of one sample, which are rows 0 … T − 2.
struct LocalSample {
  std::string sample;
  std::optional<int64_t> num_tokens;     // T; not set: one more than the rows.
  std::vector<RowRange> unrecorded;      // Rows that the tensor has no slots for: normal list.
  absl::Span<const uint32_t> token_ids;  // Of all rows' positions, or empty. Copied.
  std::vector<TokenCheck> token_checks;  // Known where there are no token ids; one that is not known does not match.
  int64_t revision = 0;
  // Not set: a hash of the rows as this source stores them, the same on ranks that add the same tensor. After
  // AddRecorded, where each rank has rows and layers of its own, there is none: ranks that agree on such a sample
  // compare none, unless the caller sets one.
  std::optional<uint64_t> content_id;
  std::vector<WeightSpan> weights;
};

// Not thread-safe while it changes; Fetch may run on many threads.
class LocalSource {
 public:
  explicit LocalSource(Geometry geometry, HandleFunction handle_of = SampleHandle);
  ~LocalSource();
  LocalSource(LocalSource&&) noexcept;
  LocalSource& operator=(LocalSource&&) noexcept;

  // Decodes, checks, narrows and keeps; the payload is not needed any more. A sample that is there already is replaced.
  // Errors as those of an append (INVALID_ARGUMENT naming sample, field, row and layer; the fields are those of
  // LocalSample, "tensor.…" and "payload"), and ALREADY_EXISTS (kHandleCollision) naming both samples where another one
  // has the same handle; what was there is untouched then.
  absl::Status Add(const LocalSample& sample, const TensorDescription& tensor, absl::Span<const uint8_t> payload);
  // R2 without transport: the rows of a sample that this rank recorded itself, out of an index buffer. Row r is that of
  // a local row which shows row r of sequence `sequence` as one to be replayed; rows of the sample that no local row
  // shows are unrecorded: other ranks hold them, and a plan that is cut alike does not ask for them. The layout has all
  // MoE layers of the geometry (for a rank of a pipeline: a geometry of its layers), which have one K.
  // sample.num_tokens is required, sample.unrecorded empty. INVALID_ARGUMENT (kGeometryMismatch, kLength, kField) for
  // what does not fit, otherwise as Add.
  absl::Status AddRecorded(const LocalSample& sample, int32_t sequence, const BufferLayout& layout,
                           absl::Span<const LocalRow> row_map, absl::Span<const uint8_t> indices);
  // True if it was there.
  bool Remove(absl::string_view sample);
  void Clear();
  int64_t size() const;

  // As FetchSlices; options.producer, wait and timeout mean nothing here.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                   const FetchOptions& options) const;
  // Only these positions in plan.slices, none of a sequence that is live.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                   absl::Span<const FetchSequence> sequences, const FetchOptions& options) const;
  // What a read says of a sample, without reading rows.
  SampleRecord Inspect(const SampleRead& asked) const;

 private:
  struct Entry;

  const Entry* Find(const SampleRead& asked) const;
  absl::Status CheckAndAdd(const LocalSample& sample, const TensorDescription& tensor,
                           absl::Span<const uint8_t> payload);

  Geometry geometry_;
  HandleFunction handle_of_;
  std::map<std::string, std::unique_ptr<const Entry>, std::less<>> samples_;
  std::map<int64_t, std::string> names_;  // Of samples_, by handle.
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_LOCAL_SOURCE_H_
