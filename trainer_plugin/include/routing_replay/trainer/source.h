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

// All ranks of a model replica must use the same policy; an agreement compares the numeric values.
enum class MissingPolicy : uint8_t {
  // The fetch (or, with an agreement, the step on all ranks) fails: FAILED_PRECONDITION names sample and status.
  kStrict = 0,
  kLive = 1,  // All rows of the sample route live, as if unrecorded. The sample is counted.
  kDrop = 2,  // As kLive in a fetch. An agreement also says that the caller must leave the sample out of the loss.
};

// Options and results of a fetch from any source. A fetch puts the slices of a plan into one staging buffer, in storage
// encoding.

struct FetchOptions {
  Producer producer = Producer::kRollout;
  MissingPolicy missing = MissingPolicy::kStrict;
  bool wait = true;  // Wait for rows that are not committed yet, until `timeout`.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
};

// One sequence of the micro-batch.
struct FetchSequence {
  std::string sample;
  int64_t handle = 0;                    // SampleHandle of the sample; used if `sample` is empty.
  std::optional<int64_t> num_tokens;     // Expected T; a sample with another T counts as missing.
  std::vector<TokenCheck> token_checks;  // Expected; a sample with other tokens counts as missing.
  // Set if all ranks of the replica have agreed to replay the sample: the content id on which they agreed. If the
  // sample is not readable or has another content id now, the fetch fails under every policy. This rank must not fall
  // back alone: the others replay the sample, so replayed and live layers would mix. Exception: the status
  // kTokensNotKnown follows the policy, because all ranks pass the same tokens and so all of them fall back.
  std::optional<uint64_t> content_id;
  bool live = false;  // Nothing is read, and the whole sequence routes live.
};

// What a fetch reports about the samples.
struct FetchedSamples {
  // One per slice of the plan, in the same order; kUnspecified if the slice was not read.
  std::vector<SampleRecord> records;
  int64_t fallback_sequences = 0;
};

struct StagedRows : FetchedSamples {
  std::vector<uint8_t> staging;
  std::vector<StagedPiece> pieces;  // layer_begin is an index in plan.layers.
  // For each sequence of the micro-batch, its rows without a route (a normal list); all rows if the sequence falls
  // back. Pass this as RealignInput::unrecorded.
  std::vector<std::vector<RowRange>> unrecorded;
};

class StagingSink;  // Collects the answer of a read.

// Rows that are available without the service. Several threads may call Fetch and Inspect at once.
class Source {
 public:
  virtual ~Source() = default;

  virtual const Geometry& geometry() const = 0;
  // Does what FetchSlices does with a service, but ignores options.producer, options.wait and options.timeout.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                   const FetchOptions& options) const;
  // Fetches only the slices at these positions in plan.slices; none may be of a live sequence.
  absl::StatusOr<StagedRows> Fetch(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                   absl::Span<const FetchSequence> sequences, const FetchOptions& options) const;
  // The record that a read would return for a sample, without reading rows.
  virtual SampleRecord Inspect(const SampleRead& asked) const = 0;

 private:
  // Passes the requested rows of a sample to `sink`, for all layers of the plan. `index` is the sample's index in the
  // read. Called only if Inspect returned kOk.
  virtual absl::Status Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan,
                             StagingSink& sink) const = 0;
};

// A source of rows that the host already has, as arrays from Ray, TransferQueue or a pickle, for replay without the
// service. The checks are the same as with the service.
//
//   LocalSource source(geometry);
//   source.Add({.sample = "step1/0"}, {.dtype = DType::kI32, .shape = {rows, layers, K}}, bytes);
//   absl::StatusOr<StagedRows> staged = source.Fetch(plan, sequences, options);

// Describes the rows of one sample, which are rows 0 … T − 2.
struct LocalSample {
  std::string sample;
  std::optional<int64_t> num_tokens;     // T; not set: one more than the rows.
  std::vector<RowRange> unrecorded;      // Rows that the tensor does not contain; a normal list.
  absl::Span<const uint32_t> token_ids;  // From position 0 on, at least one per row; or empty. Copied.
};

// Not thread-safe while samples are added or removed. The content id of a sample is a hash of its rows as they are
// stored here, so it is equal on all ranks that add the same tensor.
class LocalSource final : public Source {
 public:
  explicit LocalSource(Geometry geometry, HandleFunction handle_of = SampleHandle);
  ~LocalSource() override;
  LocalSource(LocalSource&&) noexcept;
  LocalSource& operator=(LocalSource&&) noexcept;

  // Decodes, checks and narrows the rows and keeps a copy; the payload may be freed afterwards. Replaces an existing
  // sample with this id. Fails with the errors of an append (INVALID_ARGUMENT naming sample, field, row and layer;
  // fields are those of LocalSample, "tensor.…" and "payload"), and with ALREADY_EXISTS (kHandleCollision) naming both
  // samples if another sample has the same handle. After an error the source is unchanged.
  absl::Status Add(const LocalSample& sample, const TensorDescription& tensor, absl::Span<const uint8_t> payload);
  // Adds the rows of a sample that this rank itself recorded, for R2 (replay of the trainer's own choice) without the
  // service. `indices`: the index buffer of the recording pass, which `layout` and `row_map` describe. `sequence`: the
  // sample's index in the micro-batch. Row r of the sample is taken from a local row that shows row r of `sequence` and
  // has the state kReplayed. Rows that no local row shows become unrecorded: other ranks have them, and a plan with the
  // same partition does not ask this rank for them.
  //
  // The layout must have all MoE layers of the geometry, so a source on a pipeline rank needs a geometry of only the
  // rank's layers. All MoE layers must have the same K. sample.num_tokens must be set, and sample.unrecorded empty. A
  // mismatch is INVALID_ARGUMENT (kGeometryMismatch, kLength, kField); other errors are those of Add. The sample gets
  // no content id, because the rows and layers differ between ranks.
  absl::Status AddRecorded(const LocalSample& sample, int32_t sequence, const BufferLayout& layout,
                           absl::Span<const LocalRow> row_map, absl::Span<const uint8_t> indices);
  // Removes a sample. Returns true if it existed.
  bool Remove(absl::string_view sample);
  const Geometry& geometry() const override { return geometry_; }
  SampleRecord Inspect(const SampleRead& asked) const override;

 private:
  struct Entry;

  absl::Status Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan, StagingSink& sink) const override;
  const Entry* Find(const SampleRead& asked) const;
  absl::Status CheckAndAdd(const LocalSample& sample, const TensorDescription& tensor,
                           absl::Span<const uint8_t> payload, bool has_content_id);

  Geometry geometry_;
  HandleFunction handle_of_;
  std::map<std::string, std::unique_ptr<const Entry>, std::less<>> samples_;
  std::map<int64_t, std::string> names_;  // The sample id of each handle.
};

// A source of rows that were exported to a directory (proto/FORMAT.md, "Exported runs"), for replay without the
// service.

// Keeps only the index in memory. The rows of a sample are read from its file when they are fetched, and are not kept.
// New exports may be written to the directory meanwhile. After one more export, an open source still finds all of its
// files; after a second one, it finds only the files of samples that have not changed. Immutable.
//
// A fetch can also fail with DATA_LOSS (kChecksum), naming a sample whose file was changed after it was written, and
// with INVALID_ARGUMENT, naming a sample whose file never matched the index.
class DirectorySource final : public Source {
 public:
  // FAILED_PRECONDITION: kNotCommitted if there is no finished export, kVersionMismatch if the index has another format
  // version; DATA_LOSS for a damaged index; ALREADY_EXISTS (kHandleCollision) naming two samples with the same handle.
  static absl::StatusOr<std::unique_ptr<const DirectorySource>> Open(const std::filesystem::path& directory,
                                                                     const HandleFunction& handle_of = SampleHandle);
  ~DirectorySource() override;

  const Geometry& geometry() const override;
  SampleRecord Inspect(const SampleRead& asked) const override;
  const std::string& run() const;
  Producer producer() const;
  // The sample ids, in the order of the index.
  std::vector<std::string> samples() const;

 private:
  struct Contents;

  explicit DirectorySource(std::unique_ptr<const Contents> contents);
  absl::Status Stage(const SampleRead& asked, int32_t index, const ReplayPlan& plan, StagingSink& sink) const override;

  const std::unique_ptr<const Contents> contents_;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_SOURCE_H_
