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

// Reads what plan.slices names. `sequences` has one entry per sequence of the plan's micro-batch. Blocks. Errors:
// INVALID_ARGUMENT if the plan reads a sequence that `sequences` lacks (kField) or was made for another geometry
// (kGeometryMismatch), those of Run::Read, and under kStrict FAILED_PRECONDITION whose detail names the first sample
// that cannot be replayed. Under kLive and kDrop DEADLINE_EXCEEDED and UNAVAILABLE of the read are no errors: what has
// not come to its end is kNotReady and falls back, unless the ranks had agreed on its content.
absl::StatusOr<StagedRows> FetchSlices(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                       const FetchOptions& options);

// What FetchSlices would say of each sample (StagedRows::records), before any of its rows is fetched, for the price of
// one row of one layer: what ranks agree by (routing_replay/trainer/agreement.h). A sample that is not sealed is
// kNotReady (FetchSlices reads the rows that it has), and so is one of which nothing was said until options.timeout;
// options.missing means nothing here. Blocks. Errors: those of Run::Read but DEADLINE_EXCEEDED.
absl::StatusOr<std::vector<SampleRecord>> InspectSamples(Run& run, absl::Span<const FetchSequence> sequences,
                                                         const FetchOptions& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_FETCH_H_
