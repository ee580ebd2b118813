#include "routing_replay/trainer/fetch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {
namespace {

// Returns true if the service was too slow or unreachable, as opposed to a rejection.
bool IsOutOfReach(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
}

absl::Status CheckTarget(const ReplayPlan& plan, const IndexBuffer& out) {
  const BufferLayout& layout = out.layout;
  const size_t layers = plan.layers.size();
  if (layout.num_layers() != static_cast<int32_t>(layers) || layout.rows() != plan.row_map.rows ||
      out.rows.size() != plan.row_map.rows) {
    return Invalid(
        "layout", absl::StrCat("must have the plan's ", layers, " layers and ", plan.row_map.rows, " rows, got ",
                               layout.num_layers(), " and ", layout.rows(), ", with ", out.rows.size(), " shown rows"));
  }
  return CheckTargets(layout, out.indices, out.states);
}

// Reads these slices of the plan. `sink` puts the answer into the StagedRows that it was made for.
absl::Status ReadSlices(Run& run, const ReplayPlan& plan, absl::Span<const int32_t> slices,
                        absl::Span<const FetchSequence> sequences, const FetchOptions& options, StagingSink& sink) {
  if (slices.empty()) return absl::OkStatus();
  absl::Status status = run.Read(MakeReadRequest(plan, slices, sequences, options), sink, options.timeout);
  if (options.missing == MissingPolicy::kStrict || !IsOutOfReach(status)) return status;
  return sink.GiveUp({status.message().data(), status.message().size()});
}

}  // namespace

absl::StatusOr<StagedRows> FetchSlices(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                       const FetchOptions& options) {
  RR_RETURN_IF_ERROR(CheckFetch(run.geometry(), plan, sequences));
  const std::vector<int32_t> slices = SlicesToRead(plan, sequences);
  StagedRows out;
  StagingSink sink(plan, slices, sequences, options, out);
  RR_RETURN_IF_ERROR(ReadSlices(run, plan, slices, sequences, options, sink));
  return out;
}

absl::StatusOr<RealignedRows> FetchInto(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                        const FetchOptions& options, const IndexBuffer& out) {
  RR_RETURN_IF_ERROR(CheckFetch(run.geometry(), plan, sequences));
  RR_RETURN_IF_ERROR(CheckTarget(plan, out));
  const std::vector<int32_t> slices = SlicesToRead(plan, sequences);
  StagedRows moved;
  StagingSink sink(plan, slices, sequences, options, moved, &out);
  RR_RETURN_IF_ERROR(ReadSlices(run, plan, slices, sequences, options, sink));
  RR_ASSIGN_OR_RETURN(
      const auto rows,
      PlanRows(out.layout,
               {.pieces = moved.pieces, .rows = out.rows, .unrecorded = moved.unrecorded, .last_rows = out.last_rows}));
  FinishRealign(out.layout, rows, out.indices, out.states);
  return RealignedRows{std::move(moved), rows};
}

absl::StatusOr<std::vector<SampleRecord>> InspectSamples(Run& run, absl::Span<const FetchSequence> sequences,
                                                         const FetchOptions& options) {
  InspectSink sink(sequences);
  if (sequences.empty()) return sink.records();
  const absl::Status status = run.Read(MakeInspectRequest(run.geometry(), sequences, options), sink, options.timeout);
  if (absl::IsDeadlineExceeded(status)) {
    sink.GiveUp(status.message());
  } else if (!status.ok()) {
    return status;
  }
  return sink.records();
}

}  // namespace routing_replay::trainer
