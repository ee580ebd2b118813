// Fetch from the service.
//
//   plan ─FetchSlices─▶ StagedRows ─PlanRealign, Realign─▶ index buffer and row states
#ifndef ROUTING_REPLAY_TRAINER_FETCH_H_
#define ROUTING_REPLAY_TRAINER_FETCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "routing_replay/client.h"
#include "routing_replay/trainer/plan.h"
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

// The records that FetchSlices would return for each sample (StagedRows::records), before any of its rows is fetched,
// at the cost of one row of one layer: the input of an agreement (routing_replay/trainer/agreement.h). A sample that is
// not sealed is kNotReady (FetchSlices would read the rows that it has), and so is one without an answer before
// options.timeout; options.missing is ignored. Blocks. Errors: those of Run::Read except DEADLINE_EXCEEDED.
absl::StatusOr<std::vector<SampleRecord>> InspectSamples(Run& run, absl::Span<const FetchSequence> sequences,
                                                         const FetchOptions& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_FETCH_H_
