// Where a rank's rows come from, and how a fetch of them is told and ends: rows that the host holds (LocalSource), an
// exported run (DirectorySource), and the service (fetch.h).
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

// All ranks of a model replica must use the same. The numbers travel between them.
enum class MissingPolicy : uint8_t {
  kStrict = 0,  // The fetch, or the step on all ranks, fails: FAILED_PRECONDITION naming the sample and its status.
  kLive = 1,    // The whole sample is unrecorded: its rows take live routing. Counted.
  kDrop = 2,    // As kLive, and it is named: the caller leaves it out of the loss.
};

// What a fetch is told and what it gives, wherever the rows come from: the slices of a plan in one staging buffer, in
// storage encoding.

struct FetchOptions {
  Producer producer = Producer::kRollout;
  MissingPolicy missing = MissingPolicy::kStrict;
  bool wait = true;  // For rows that are not committed yet, until `timeout`.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
};

// One sequence of the micro-batch.
struct FetchSequence {
  std::string sample;
  int64_t handle = 0;                    // SampleHandle of its id; used where sample is empty.
  std::optional<int64_t> num_tokens;     // Expected T; another one counts as missing.
  std::vector<TokenCheck> token_checks;  // Expected; another one counts as missing.
  // What all ranks of the replica agreed on before. A sample that has this content id must have it still, and be
  // readable, whatever the policy: a rank that fell back alone would mix its layers with the others'. But for
  // kTokensNotKnown, which is as the policy has it: ranks that name tokens alike fall back alike.
  std::optional<uint64_t> content_id;
  bool live = false;  // It falls back: nothing is read, the whole sequence is unrecorded.
};

struct StagedRows {
  std::vector<uint8_t> staging;
  std::vector<StagedPiece> pieces;    // layer_begin counts in plan.layers.
  std::vector<SampleRecord> records;  // One per plan slice, in its order; kUnspecified of one that was not read.
  // Per sequence of the micro-batch: rows without a route (normal lists), all rows where it falls back. What
  // RealignInput::unrecorded takes.
  std::vector<std::vector<RowRange>> unrecorded;
  int64_t fallback_sequences = 0;
  std::vector<int32_t> dropped;  // Under kDrop: the sequences that fall back, in the order in which that was found.
};

class StagingSink;  // What collects the answer of a read.

// Rows that are at hand without a service. Fetch and Inspect may run on many threads.
class Source {
 public:
  virtual ~Source() = default;

  virtual const Geometry& geometry() const = 0;
  // As FetchSlices; options.wait and timeout mean nothing here.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                   const FetchOptions& options) const;
  // Only these positions in plan.slices, none of a sequence that is live.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                   absl::Span<const FetchSequence> sequences, const FetchOptions& options) const;
  // What a read says of a sample, without reading rows.
  SampleRecord Inspect(const SampleRead& asked, Producer producer = Producer::kRollout) const {
    return Answer(asked, producer);
  }

 private:
  virtual SampleRecord Answer(const SampleRead& asked, Producer producer) const = 0;
  // The rows asked for of a sample that Answer says is kOk, all layers of the plan, as those of the read's sample
  // number `index`.
  virtual absl::Status Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan,
                             StagingSink& sink) const = 0;
};

// Rows that the host holds already, as arrays from Ray, TransferQueue or a pickle: the plugin without the service. The
// same checks, the same staging.
//
//   LocalSource source(geometry);
//   source.Add({.sample = "step1/0"}, {.dtype = DType::kI32, .shape = {rows, layers, K}}, bytes);
//   absl::StatusOr<StagedRows> staged = source.Fetch(plan, sequences, options);

// What is said of the rows of one sample, which are rows 0 … T − 2.
struct LocalSample {
  std::string sample;
  std::optional<int64_t> num_tokens;     // T; not set: one more than the rows.
  std::vector<RowRange> unrecorded;      // Rows that the tensor has no slots for: normal list.
  absl::Span<const uint32_t> token_ids;  // Of all rows' positions, or empty. Copied.
};

// Not thread-safe while it changes. They are those of every producer. The content id of a sample is a hash of the rows
// as this source stores them, the same on ranks that add the same tensor.
class LocalSource final : public Source {
 public:
  explicit LocalSource(Geometry geometry, HandleFunction handle_of = SampleHandle);
  ~LocalSource() override;
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
  // sample.num_tokens is required, sample.unrecorded empty. There is no content id: each rank has rows and layers of
  // its own. INVALID_ARGUMENT (kGeometryMismatch, kLength, kField) for what does not fit, otherwise as Add.
  absl::Status AddRecorded(const LocalSample& sample, int32_t sequence, const BufferLayout& layout,
                           absl::Span<const LocalRow> row_map, absl::Span<const uint8_t> indices);
  // True if it was there.
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
  std::map<int64_t, std::string> names_;  // Of samples_, by handle.
};

// Rows that were exported to a directory (proto/FORMAT.md, "Exported runs"): replay without the service.

// Holds the index; a sample's rows are read when they are fetched, one sample at a time, and not kept. Exports may go
// on into the directory: a source finds its files until the second one after it was opened has ended, then those of
// samples that have not changed. Immutable.
//
// A fetch moreover gives DATA_LOSS (kChecksum) naming a sample whose file is not as it was written, and
// INVALID_ARGUMENT naming one whose file was never as the index says. A read for another producer than the run's finds
// no sample, and the record's message names both.
class DirectorySource final : public Source {
 public:
  // FAILED_PRECONDITION: kNotCommitted where no export has ended, kVersionMismatch; DATA_LOSS for a damaged index;
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
