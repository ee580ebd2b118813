// Sources of a rank's rows, and the options and results of a fetch: rows that the host holds (LocalSource), an exported
// run (DirectorySource), and the service (fetch.h).
#ifndef ROUTING_REPLAY_TRAINER_SOURCE_H_
#define ROUTING_REPLAY_TRAINER_SOURCE_H_

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"
#include "routing_replay/wire/tensor.h"

namespace routing_replay::trainer {

// What happens to a sample that cannot be replayed.

// All ranks of a model replica must use the same policy; they compare its number.
enum class MissingPolicy : uint8_t {
  kStrict = 0,  // The fetch, or the step on all ranks, fails: FAILED_PRECONDITION naming the sample and its status.
  kLive = 1,    // The whole sample is unrecorded: its rows take live routing. Counted.
  kDrop = 2,    // As kLive, and the sample is listed: the caller leaves it out of the loss.
};

// Options and results of a fetch from any source: the slices of a plan in one staging buffer, in storage encoding.

struct FetchOptions {
  Producer producer = Producer::kRollout;
  MissingPolicy missing = MissingPolicy::kStrict;
  bool wait = true;  // Wait for rows that are not committed yet, until `timeout`.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
};

// One sequence of the micro-batch.
struct FetchSequence {
  std::string sample;
  int64_t handle = 0;                    // SampleHandle of its id; used if sample is empty.
  std::optional<int64_t> num_tokens;     // Expected T; a sample with another one counts as missing.
  std::vector<TokenCheck> token_checks;  // Expected; a sample that differs counts as missing.
  // The content that all ranks of the replica agreed on before. The sample must still have this content id and be
  // readable, whatever the policy: if one rank fell back alone, replayed and live layers would mix. Exception:
  // kTokensNotKnown follows the policy, because ranks that name the same tokens all fall back.
  std::optional<uint64_t> content_id;
  bool live = false;  // Falls back: nothing is read, the whole sequence is unrecorded.
};

// What a fetch says about the samples.
struct FetchedSamples {
  std::vector<SampleRecord> records;  // One per plan slice, in its order; kUnspecified if it was not read.
  int64_t fallback_sequences = 0;
  std::vector<int32_t> dropped;  // Under kDrop: the sequences that fall back, in the order in which they were found.
};

struct StagedRows : FetchedSamples {
  std::vector<uint8_t> staging;
  std::vector<StagedPiece> pieces;  // layer_begin is an index in plan.layers.
  // Per sequence of the micro-batch: rows without a route (normal lists), or all rows if it falls back. The value of
  // RealignInput::unrecorded.
  std::vector<std::vector<RowRange>> unrecorded;
};

class StagingSink;  // Collects the answer of a read.

// Rows that are available without the service. Fetch and Inspect may run on many threads.
class Source {
 public:
  virtual ~Source() = default;

  virtual const Geometry& geometry() const = 0;
  // As FetchSlices; options.wait and timeout are ignored.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                   const FetchOptions& options) const;
  // Fetches only these positions in plan.slices, none of a live sequence.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                   absl::Span<const FetchSequence> sequences, const FetchOptions& options) const;
  // The record that a read would return for a sample, without reading rows.
  SampleRecord Inspect(const SampleRead& asked, Producer producer = Producer::kRollout) const {
    return Answer(asked, producer);
  }

 private:
  virtual SampleRecord Answer(const SampleRead& asked, Producer producer) const = 0;
  // Stages the requested rows of a sample for which Answer returned kOk, all layers of the plan, as those of the read's
  // sample number `index`.
  virtual absl::Status Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan,
                             StagingSink& sink) const = 0;
};

// Rows that the host holds already, as arrays from Ray, TransferQueue or a pickle: replay without the service. Same
// checks, same staging.
//
//   LocalSource source(geometry);
//   source.Add({.sample = "step1/0"}, {.dtype = DType::kI32, .shape = {rows, layers, K}}, bytes);
//   absl::StatusOr<StagedRows> staged = source.Fetch(plan, sequences, options);

// Describes the rows of one sample, which are rows 0 … T − 2.
struct LocalSample {
  std::string sample;
  std::optional<int64_t> num_tokens;     // T; not set: one more than the rows.
  std::vector<RowRange> unrecorded;      // Rows for which the tensor has no slots: normal list.
  absl::Span<const uint32_t> token_ids;  // Token ids of all rows' positions, or empty. Copied.
};

// Not thread-safe while it changes. Its samples count for every producer. The content id of a sample is a hash of the
// rows as this source stores them, the same on all ranks that add the same tensor.
class LocalSource final : public Source {
 public:
  explicit LocalSource(Geometry geometry, HandleFunction handle_of = SampleHandle);
  ~LocalSource() override;
  LocalSource(LocalSource&&) noexcept;
  LocalSource& operator=(LocalSource&&) noexcept;

  // Decodes, checks, narrows and keeps the rows; the payload is not needed any more. An existing sample of that id is
  // replaced. Errors as those of an append (INVALID_ARGUMENT naming sample, field, row and layer; the fields are those
  // of LocalSample, "tensor.…" and "payload"), and ALREADY_EXISTS (kHandleCollision) naming both samples if another one
  // has the same handle; the existing samples are untouched then.
  absl::Status Add(const LocalSample& sample, const TensorDescription& tensor, absl::Span<const uint8_t> payload);
  // R2 without transport: keeps the rows of a sample that this rank recorded itself, from an index buffer. Row r comes
  // from a local row that shows row r of sequence `sequence` as one to be replayed. Rows of the sample that no local
  // row shows are unrecorded: other ranks hold them, and a plan with the same partition does not ask for them. The
  // layout must have all MoE layers of the geometry (for a rank of a pipeline: a geometry of its layers), which must
  // have one K. sample.num_tokens is required, sample.unrecorded must be empty. There is no content id: each rank has
  // rows and layers of its own. INVALID_ARGUMENT (kGeometryMismatch, kLength, kField) for mismatches, otherwise as Add.
  absl::Status AddRecorded(const LocalSample& sample, int32_t sequence, const BufferLayout& layout,
                           absl::Span<const LocalRow> row_map, absl::Span<const uint8_t> indices);
  // Returns true if the sample existed.
  bool Remove(absl::string_view sample);
  const Geometry& geometry() const override { return geometry_; }

 private:
  struct Entry;

  SampleRecord Answer(const SampleRead& asked, Producer producer) const override;
  absl::Status Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan, StagingSink& sink) const override;
  const Entry* Find(const SampleRead& asked) const;
  absl::Status CheckAndAdd(const LocalSample& sample, const TensorDescription& tensor,
                           absl::Span<const uint8_t> payload, bool has_content_id);

  Geometry geometry_;
  HandleFunction handle_of_;
  std::map<std::string, std::unique_ptr<const Entry>, std::less<>> samples_;
  std::map<int64_t, std::string> names_;  // Ids of samples_, by handle.
};

// Rows that were exported to a directory (proto/FORMAT.md, "Exported runs"): replay without the service.

// Holds the index. A sample's rows are read when they are fetched, one sample at a time, and are not kept. Exports may
// go on into the directory: a source finds its files until the second export after it was opened has ended, and from
// then on only those of unchanged samples. Immutable.
//
// In addition, a fetch returns DATA_LOSS (kChecksum) naming a sample whose file was changed since it was written, and
// INVALID_ARGUMENT naming one whose file never matched the index. A read for another producer than the run's finds no
// sample, and the record's message names both.
class DirectorySource final : public Source {
 public:
  // FAILED_PRECONDITION: kNotCommitted if there is no finished export, kVersionMismatch; DATA_LOSS for a damaged index;
  // ALREADY_EXISTS (kHandleCollision) naming two samples with the same handle.
  static absl::StatusOr<std::unique_ptr<const DirectorySource>> Open(const std::filesystem::path& directory,
                                                                     const HandleFunction& handle_of = SampleHandle);
  ~DirectorySource() override;

  const Geometry& geometry() const override;
  const std::string& run() const;
  Producer producer() const;
  // Ids, in the order of the index.
  std::vector<std::string> samples() const;

 private:
  struct Contents;

  explicit DirectorySource(std::unique_ptr<const Contents> contents);
  SampleRecord Answer(const SampleRead& asked, Producer producer) const override;
  absl::Status Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan, StagingSink& sink) const override;

  const std::unique_ptr<const Contents> contents_;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_SOURCE_H_
