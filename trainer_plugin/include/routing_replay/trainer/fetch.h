// Fetch from the service.
//
//   plan ─FetchInto─▶ index buffer and row states
//   plan ─FetchSlices─▶ StagedRows ─PlanRealign─▶ what a device realigns, or Realign
#ifndef ROUTING_REPLAY_TRAINER_FETCH_H_
#define ROUTING_REPLAY_TRAINER_FETCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/client.h"
#include "routing_replay/trainer/plan.h"
#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/row_map.h"
#include "routing_replay/trainer/source.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay::trainer {

// Reads plan.slices from the service. `sequences` has one entry per sequence of the plan's micro-batch. Blocks. Errors:
// INVALID_ARGUMENT if the plan reads a sequence that `sequences` lacks (kField) or was made for another geometry
// (kGeometryMismatch); those of Run::Read; under kStrict FAILED_PRECONDITION whose detail names the first sample that
// cannot be replayed. Under kLive and kDrop, DEADLINE_EXCEEDED and UNAVAILABLE are no errors: a sample that was not
// read completely is kNotReady and falls back, unless the ranks had agreed on its content.
absl::StatusOr<StagedRows> FetchSlices(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                       const FetchOptions& options);

// The index buffer and the row states of a micro-batch on one rank, for FetchInto.
struct IndexBuffer {
  const BufferLayout& layout;                // Of the plan's layers and rows.
  const ShownRows& rows;                     // Of the plan's row map.
  absl::Span<const int64_t> last_rows = {};  // As in RealignInput.
  absl::Span<uint8_t> indices;               // layout.bytes() of them.
  absl::Span<RowState> states;               // layout.rows() of them.
};

struct RealignedRows : FetchedSamples, RowCounts {};

// FetchSlices, PlanRealign and Realign in one, without staging: rows are moved when they arrive. Errors of all three.
// After an error `out` holds anything.
absl::StatusOr<RealignedRows> FetchInto(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                        const FetchOptions& options, const IndexBuffer& out);

// The records that FetchSlices would return for each sample (StagedRows::records), before any of its rows is fetched,
// at the cost of one row of one layer: the input of an agreement (routing_replay/trainer/agreement.h). A sample that is
// not sealed is kNotReady (FetchSlices would read the rows that it has), and so is one without an answer before
// options.timeout; options.missing is ignored. Blocks. Errors: those of Run::Read except DEADLINE_EXCEEDED.
absl::StatusOr<std::vector<SampleRecord>> InspectSamples(Run& run, absl::Span<const FetchSequence> sequences,
                                                         const FetchOptions& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_FETCH_H_
