// Sinks for reads: one stages rows and records for a fetch, the other keeps only records, for an inspection.
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

// Returns the Reason for an error about a sample with this status; kUnspecified if there is no special reason.
Reason MissingReason(SampleStatus status);

// INVALID_ARGUMENT (kField) if the plan reads a sequence that `sequences` lacks.
absl::Status CheckSequences(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// Checks that rows of `geometry` can be staged for the plan: as CheckSequences, and INVALID_ARGUMENT with
// kGeometryMismatch naming a layer that has another E or K, or another ordinal.
absl::Status CheckFetch(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// Returns the positions in plan.slices of the slices to read: all except those of live sequences. Requires that
// CheckFetch returned OK.
std::vector<int32_t> SlicesToRead(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// Makes the request, without the run's name, for these slices in this order. Requires that CheckFetch returned OK.
ReadRequest MakeReadRequest(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                            absl::Span<const FetchSequence> sequences, const FetchOptions& options);

// Collects the answer to MakeReadRequest. Pieces are staged one after the other as they arrive; with `into`, they are
// moved to the index buffer at once instead. Live sequences fall back. All arguments must outlive the sink.
// It fails with FAILED_PRECONDITION
//   under kStrict, naming the first sample that cannot be replayed
//   under every policy, with field content_id, naming a sample whose content is not the one on which the ranks agreed
class StagingSink final : public ReadSink {
 public:
  StagingSink(const ReplayPlan& plan, absl::Span<const int32_t> slices, absl::Span<const FetchSequence> sequences,
              const FetchOptions& options, StagedRows& out, const IndexBuffer* into = nullptr);
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;
  std::vector<uint8_t>* staging() override { return into_ == nullptr ? &out_.staging : nullptr; }

  // Ends the fetch early: samples that are not complete become kNotReady, with `why` as their message.
  absl::Status GiveUp(absl::string_view why);

 private:
  void FallBack(int32_t sequence);

  const ReplayPlan& plan_;
  const absl::Span<const int32_t> slices_;
  const absl::Span<const FetchSequence> sequences_;
  const FetchOptions& options_;
  StagedRows& out_;
  const IndexBuffer* const into_;
  int32_t told_ = 0;          // Position in slices_ of the last record.
  size_t pieces_before_ = 0;  // Number of pieces before the last record.
};

// An inspection asks about samples before their rows are fetched, so that the ranks of a replica can agree on what to
// replay.
//
// Makes a request whose records equal those of a read of all rows, but which reads only one row of one layer per
// sample. It requests the last row (known from T, else from the token checks), so that the server waits for all rows;
// if neither is given, the first row.
ReadRequest MakeInspectRequest(const Geometry& geometry, absl::Span<const FetchSequence> sequences,
                               const FetchOptions& options);

// Collects the records that answer MakeInspectRequest for these sequences. A sample that is not sealed becomes
// kNotReady, however many rows it has.
class InspectSink final : public ReadSink {
 public:
  explicit InspectSink(absl::Span<const FetchSequence> sequences);
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;

  // Ends the answer here: samples without a record become kNotReady, with `why` as their message.
  void GiveUp(absl::string_view why);
  // One per sequence.
  const std::vector<SampleRecord>& records() const { return records_; }

 private:
  std::vector<SampleRecord> records_;
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_STAGING_SINK_H_
