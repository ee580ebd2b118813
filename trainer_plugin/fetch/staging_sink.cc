#include "trainer_plugin/fetch/staging_sink.h"

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "trainer_plugin/fetch/missing_sample.h"

namespace routing_replay::trainer {
namespace {

constexpr RowRange kAllRows{0, kMaxRows};

absl::Status MissingSample(int32_t sequence, const std::string& sample, const SampleRecord& record) {
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("sequence ", sequence, ", sample ", sample, ": ", SampleStatusName(record.status), ": ",
                                record.message),
                   {.reason = MissingReason(record.status), .sample = sample});
}

}  // namespace

absl::Status CheckFetch(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences) {
  for (const PlanSlice& slice : plan.slices) {
    if (static_cast<size_t>(slice.sequence) < sequences.size()) continue;
    return MakeError(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("sequences: the plan reads sequence ", slice.sequence, ", ", sequences.size(),
                                  " sequences are named"),
                     {.reason = Reason::kField, .field = "sequences"});
  }
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerRouting& planned = plan.routing[i];
    const int32_t ordinal = plan.layers[i].ordinal;
    if (geometry.FindOrdinal(planned.layer_id) == ordinal && geometry.layer(ordinal) == planned) continue;
    ErrorDetail detail{.reason = Reason::kGeometryMismatch, .field = "plan.layers"};
    detail.layer = planned.layer_id;
    return MakeError(
        absl::StatusCode::kInvalidArgument,
        absl::StrCat("plan.layers: layer ", planned.layer_id, ", MoE layer number ", ordinal, " with E ",
                     planned.num_experts, " and K ", planned.top_k, ", is not so in ", geometry.DebugString()),
        detail);
  }
  return absl::OkStatus();
}

ReadRequest MakeReadRequest(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                            const FetchOptions& options) {
  ReadRequest request{.producer = options.producer, .wait = options.wait};
  for (const OwnedLayer& layer : plan.layers) request.layers.push_back(layer.layer_id);
  for (const PlanSlice& slice : plan.slices) {
    const FetchSequence& sequence = sequences[slice.sequence];
    request.samples.push_back({.sample = sequence.sample,
                               .handle = sequence.handle,
                               .rows = slice.rows,
                               .num_tokens = sequence.num_tokens,
                               .token_checks = sequence.token_checks});
  }
  return request;
}

StagingSink::StagingSink(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences, const FetchOptions& options,
                         StagedRows& out)
    : plan_(plan), sequences_(sequences), options_(options), out_(out) {
  out_.records.resize(plan.slices.size());
  out_.unrecorded.resize(sequences.size());
  out_.staging.reserve(plan.bytes_to_read);
}

absl::Status StagingSink::OnRecord(const SampleRecord& record) {
  const int32_t sequence = plan_.slices[record.index].sequence;
  out_.records[record.index] = record;
  if (record.status == SampleStatus::kOk) {
    out_.unrecorded[sequence] = record.unrecorded;
    return absl::OkStatus();
  }
  if (options_.missing == MissingPolicy::kStrict) {
    const FetchSequence& named = sequences_[sequence];
    const std::string sample = named.sample.empty() ? absl::StrCat("with handle ", named.handle) : named.sample;
    return MissingSample(sequence, sample, record);
  }
  out_.unrecorded[sequence] = {kAllRows};
  ++out_.fallback_sequences;
  return absl::OkStatus();
}

absl::Status StagingSink::OnPiece(const ReadPiece& piece) {
  out_.pieces.push_back({.sequence = plan_.slices[piece.sample_index].sequence,
                         .layer_begin = piece.layer_begin,
                         .layer_count = piece.layer_count,
                         .rows = piece.rows,
                         .codec = piece.codec,
                         .bit_offset = piece.bit_offset,
                         .offset = piece.bytes.data() - out_.staging.data()});
  return absl::OkStatus();
}

}  // namespace routing_replay::trainer
