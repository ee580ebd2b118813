// Fetches the rows of a plan from the service.
//
//   plan ─FetchInto─▶ index buffer and row states
//   plan ─FetchSlices─▶ StagedRows ─PlanRealign─▶ RealignPlan, for Realign (on the CPU) or PackPlan (for a GPU)
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

// Reads plan.slices from the service. `sequences` must have one entry per sequence of the plan's micro-batch. Blocks.
// Errors: INVALID_ARGUMENT if the plan reads a sequence that `sequences` lacks (kField) or was made for another
// geometry (kGeometryMismatch); the errors of Run::Read; under kStrict, FAILED_PRECONDITION that names the first sample
// that cannot be replayed. Under kLive and kDrop, DEADLINE_EXCEEDED and UNAVAILABLE are not errors: samples that were
// not read completely get the status kNotReady and fall back. Exception: a sample with a content_id must not fall back,
// because the ranks have agreed on it, so the fetch fails instead.
absl::StatusOr<StagedRows> FetchSlices(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                       const FetchOptions& options);

// The index buffer and the row states of a micro-batch on one rank, for FetchInto.
struct IndexBuffer {
  const BufferLayout& layout;                // Made for the plan's layers and rows.
  const ShownRows& rows;                     // Made from the plan's row map.
  absl::Span<const int64_t> last_rows = {};  // See RealignInput::last_rows.
  absl::Span<uint8_t> indices;               // Output, layout.bytes() bytes.
  absl::Span<RowState> states;               // Output, layout.rows() entries.
};

struct RealignedRows : FetchedSamples, RowCounts {};

// FetchSlices, PlanRealign and Realign in one, without a staging buffer: rows are moved to `out` as soon as they
// arrive. Returns the errors of all three. After an error, the content of `out` is undefined.
absl::StatusOr<RealignedRows> FetchInto(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                        const FetchOptions& options, const IndexBuffer& out);

// Returns the record that FetchSlices would return for each sample (StagedRows::records), before the rows are fetched,
// at the cost of reading one row of one layer per sample. These records are the input of an agreement
// (routing_replay/trainer/agreement.h). A sample that is not sealed is kNotReady, although FetchSlices would read the
// rows that it has. A sample without an answer within options.timeout is also kNotReady. options.missing is ignored.
// Blocks. Errors: those of Run::Read except DEADLINE_EXCEEDED.
absl::StatusOr<std::vector<SampleRecord>> InspectSamples(Run& run, absl::Span<const FetchSequence> sequences,
                                                         const FetchOptions& options);

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_FETCH_H_
