// What becomes of the answers of a read: staged rows and records of a fetch, or records alone of an inspection.
#ifndef TRAINER_PLUGIN_FETCH_STAGING_SINK_H_
#define TRAINER_PLUGIN_FETCH_STAGING_SINK_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "routing_replay/client.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::trainer {

// Why a sample cannot be replayed, as errors say it.

// The reason of an error about a sample of this status; kUnspecified where the status says all there is.
Reason MissingReason(SampleStatus status);

// What every fetch does, whatever brings the rows: ask for a plan's slices, and stage what comes. Knows no gRPC.

// INVALID_ARGUMENT (kField) if the plan reads a sequence that `sequences` lacks.
absl::Status CheckSequences(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// Whether rows of `geometry` can be staged for the plan: as CheckSequences, and INVALID_ARGUMENT with
// kGeometryMismatch naming a layer that has another E or K, or another number among the MoE
// layers.
absl::Status CheckFetch(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// Positions in plan.slices of what is to be read: all but the sequences that are live. Requires CheckFetch.
std::vector<int32_t> SlicesToRead(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences);

// The read of these slices of the plan, in their order, without a run. Requires CheckFetch.
ReadRequest MakeReadRequest(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                            absl::Span<const FetchSequence> sequences, const FetchOptions& options);

// Collects the answer of MakeReadRequest: pieces behind each other as they arrive, and of sequences that are live that
// they fall back. Under kStrict FAILED_PRECONDITION naming the first sample that cannot be replayed; under every policy
// FAILED_PRECONDITION, field content_id, naming one that is not as was agreed. Everything given must outlive the sink.
class StagingSink final : public ReadSink {
 public:
  StagingSink(const ReplayPlan& plan, absl::Span<const int32_t> slices, absl::Span<const FetchSequence> sequences,
              const FetchOptions& options, StagedRows& out);
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;
  std::vector<uint8_t>* staging() override { return &out_.staging; }

  // The answer ends here: samples that were not told of to the end are kNotReady, `why` being their message.
  absl::Status GiveUp(absl::string_view why);

 private:
  void FallBack(int32_t sequence);

  const ReplayPlan& plan_;
  const absl::Span<const int32_t> slices_;
  const absl::Span<const FetchSequence> sequences_;
  const FetchOptions& options_;
  StagedRows& out_;
  int32_t told_ = 0;          // Position in slices_ of the last record, …
  size_t pieces_before_ = 0;  // … and how many pieces there were before it.
};

// What is known of samples before their rows are fetched: by it the ranks of a replica agree on what to replay.

// A read that says of each sample what one of all its rows would say, for the price of one row of one layer: its last
// row, by T or else by its token checks, so that it waits for all of them; the first where neither is given.
ReadRequest MakeInspectRequest(const Geometry& geometry, absl::Span<const FetchSequence> sequences,
                               const FetchOptions& options);

// Keeps what the answer to MakeInspectRequest of these sequences says. A sample of one token, which has no rows, is kOk
// although the first was asked for; one that is not sealed yet is kNotReady, however many of its rows there are.
class InspectSink final : public ReadSink {
 public:
  explicit InspectSink(absl::Span<const FetchSequence> sequences);
  absl::Status OnRecord(const SampleRecord& record) override;
  absl::Status OnPiece(const ReadPiece& piece) override;

  // The answer ends here: samples that nothing is known of are kNotReady, `why` being their message.
  void GiveUp(absl::string_view why);
  // One per sample.
  const std::vector<SampleRecord>& records() const { return records_; }

 private:
  std::vector<SampleRecord> records_;
  std::vector<bool> may_have_no_rows_;  // Of each sample, by what was said of it.
};

}  // namespace routing_replay::trainer

#endif  // TRAINER_PLUGIN_FETCH_STAGING_SINK_H_
