#include "routing_replay/trainer/fetch.h"

#include "proto/wire/status_macros.h"
#include "trainer_plugin/fetch/staging_sink.h"

namespace routing_replay::trainer {
namespace {

// True if the service is slow or gone, rather than rejecting.
bool IsOutOfReach(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status);
}

}  // namespace

absl::StatusOr<StagedRows> FetchSlices(Run& run, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                       const FetchOptions& options) {
  RR_RETURN_IF_ERROR(CheckFetch(run.geometry(), plan, sequences));
  const std::vector<int32_t> slices = SlicesToRead(plan, sequences);
  StagedRows out;
  StagingSink sink(plan, slices, sequences, options, out);
  if (slices.empty()) return out;
  absl::Status status = run.Read(MakeReadRequest(plan, slices, sequences, options), sink, options.timeout);
  if (options.missing != MissingPolicy::kStrict && IsOutOfReach(status)) {
    status = sink.GiveUp({status.message().data(), status.message().size()});
  }
  if (!status.ok()) return status;
  return out;
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
