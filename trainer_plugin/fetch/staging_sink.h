// Sinks for the answers of reads: staged rows and records for a fetch, only records for an inspection.
#ifndef TRAINER_PLUGIN_FETCH_STAGING_SINK_H_
#define TRAINER_PLUGIN_FETCH_STAGING_SINK_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/client.h"
#include "routing_replay/trainer/fetch.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::trainer {

// The reason of an error about a sample that cannot be replayed; kUnspecified if its status says enough.
Reason MissingReason(SampleStatus status);

// INVALID_ARGUMENT (kField) if the plan reads a sequence that `sequences` lacks.
absl::Status CheckSequences(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// Checks that rows of `geometry` can be staged for the plan: as CheckSequences, and INVALID_ARGUMENT with
// kGeometryMismatch naming a layer that has another E or K, or another ordinal.
absl::Status CheckFetch(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// Positions in plan.slices of the slices to read: all except live sequences. Requires CheckFetch.
std::vector<int32_t> SlicesToRead(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// The request for these slices of the plan, in their order, without a run. Requires CheckFetch.
ReadRequest MakeReadRequest(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                            absl::Span<const FetchSequence> sequences, const FetchOptions& options);

// Collects the answer to MakeReadRequest: pieces one after the other as they arrive, or, with `into`, moved where they
// belong at once, their offsets as if they were staged; live sequences fall back. Under
// kStrict FAILED_PRECONDITION naming the first sample that cannot be replayed; under every policy FAILED_PRECONDITION,
// field content_id, naming one whose content is not what was agreed. All arguments must outlive the sink.
class StagingSink final : public ReadSink {
 public:
  StagingSink(const ReplayPlan& plan, absl::Span<const int32_t> slices, absl::Span<const FetchSequence> sequences,
              const FetchOptions& options, StagedRows& out, const IndexBuffer* into = nullptr);
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;
  std::vector<uint8_t>* staging() override { return into_ == nullptr ? &out_.staging : nullptr; }
  // With `into`: bytes of all pieces.
  int64_t moved() const { return moved_; }

  // Ends the answer here: samples that are not complete become kNotReady, with `why` as their message.
  absl::Status GiveUp(absl::string_view why);

 private:
  void FallBack(int32_t sequence);

  const ReplayPlan& plan_;
  const absl::Span<const int32_t> slices_;
  const absl::Span<const FetchSequence> sequences_;
  const FetchOptions& options_;
  StagedRows& out_;
  const IndexBuffer* const into_;
  int64_t moved_ = 0;
  int32_t told_ = 0;          // Position in slices_ of the last record, …
  size_t pieces_before_ = 0;  // … and the number of pieces before it.
};

// For asking about samples before their rows are fetched, so that the ranks of a replica can agree on what to replay.
//
// A request whose records equal those of a read of all rows, at the price of one row of one layer per sample. It
// requests the last row, known from T or else from the token checks, so that it waits for all rows; the first row if
// neither is given.
ReadRequest MakeInspectRequest(const Geometry& geometry, absl::Span<const FetchSequence> sequences,
                               const FetchOptions& options);

// Keeps the answer to MakeInspectRequest for these sequences. A sample of one token, which has no rows, is kOk although
// its first row was requested; one that is not sealed yet is kNotReady, however many rows it has.
class InspectSink final : public ReadSink {
 public:
  explicit InspectSink(absl::Span<const FetchSequence> sequences);
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;

  // Ends the answer here: samples without a record become kNotReady, with `why` as their message.
  void GiveUp(absl::string_view why);
  // One per sample.
  const std::vector<SampleRecord>& records() const { return records_; }

 private:
  std::vector<SampleRecord> records_;
  std::vector<bool> may_have_no_rows_;  // Per sample, from what is expected of it.
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_STAGING_SINK_H_
