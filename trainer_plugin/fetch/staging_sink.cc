#include "trainer_plugin/fetch/staging_sink.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"

namespace routing_replay::trainer {

Reason MissingReason(SampleStatus status) {
  switch (status) {
    case SampleStatus::kNotFound:
      return Reason::kNoSample;
    case SampleStatus::kNotRecorded:
    case SampleStatus::kNotReady:
    case SampleStatus::kOutOfRange:
      return Reason::kNotCommitted;
    case SampleStatus::kLengthMismatch:
      return Reason::kRowCount;
    case SampleStatus::kTokensMismatch:
    case SampleStatus::kTokensNotKnown:
      return Reason::kOtherTokens;
    default:
      return Reason::kUnspecified;
  }
}

namespace {

constexpr RowRange kAllRows{0, kMaxRows};

absl::Status MissingSample(int32_t sequence, const FetchSequence& named, const SampleRecord& record) {
  const std::string sample = DescribeSample(named.sample, named.handle);
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("sequence ", sequence, ", sample ", sample, ": ", SampleStatusName(record.status), ": ",
                                record.message),
                   {.reason = MissingReason(record.status), .sample = sample});
}

absl::Status NotAsAgreed(int32_t sequence, const FetchSequence& named, const SampleRecord& record) {
  const std::string sample = DescribeSample(named.sample, named.handle);
  const bool readable = record.status == SampleStatus::kOk;
  const std::string found = readable ? absl::StrCat("has content id ", record.content_id)
                                     : absl::StrCat(SampleStatusName(record.status), ": ", record.message);
  return MakeError(absl::StatusCode::kFailedPrecondition,
                   absl::StrCat("sequence ", sequence, ", sample ", sample, ": ", found,
                                "; the ranks agreed on content id ", *named.content_id),
                   {.reason = readable ? Reason::kConflictingRows : MissingReason(record.status),
                    .field = "content_id",
                    .sample = sample});
}

}  // namespace

absl::Status CheckSequences(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences) {
  for (const PlanSlice& slice : plan.slices) {
    if (static_cast<size_t>(slice.sequence) < sequences.size()) continue;
    return Invalid("sequences", absl::StrCat("the plan reads sequence ", slice.sequence, ", but ", sequences.size(),
                                             " sequences are named"));
  }
  return absl::OkStatus();
}

absl::Status CheckFetch(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const FetchSequence> sequences) {
  RR_RETURN_IF_ERROR(CheckSequences(plan, sequences));
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerRouting& planned = plan.routing[i];
    const int32_t ordinal = plan.layers[i].ordinal;
    if (geometry.FindOrdinal(planned.layer_id) == ordinal && geometry.layer(ordinal) == planned) continue;
    return Invalid(
        {.reason = Reason::kGeometryMismatch, .field = "plan.layers", .layer = planned.layer_id},
        absl::StrCat("layer ", planned.layer_id, ", MoE layer number ", ordinal, " with E ", planned.num_experts,
                     " and K ", planned.top_k, " in the plan, has other values in ", geometry.DebugString()));
  }
  return absl::OkStatus();
}

std::vector<int32_t> SlicesToRead(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences) {
  std::vector<int32_t> slices;
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    if (!sequences[plan.slices[i].sequence].live) slices.push_back(static_cast<int32_t>(i));
  }
  return slices;
}

ReadRequest MakeReadRequest(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                            absl::Span<const FetchSequence> sequences, const FetchOptions& options) {
  ReadRequest request{.producer = options.producer, .wait = options.wait, .only_begun = true};
  for (const OwnedLayer& layer : plan.layers) request.layers.push_back(layer.layer_id);
  for (const int32_t slice : slices) {
    const FetchSequence& sequence = sequences[plan.slices[slice].sequence];
    request.samples.push_back({.sample = sequence.sample,
                               .handle = sequence.handle,
                               .rows = plan.slices[slice].rows,
                               .num_tokens = sequence.num_tokens,
                               .token_checks = sequence.token_checks});
  }
  return request;
}

StagingSink::StagingSink(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                         absl::Span<const FetchSequence> sequences, const FetchOptions& options, StagedRows& out,
                         const IndexBuffer* into)
    : plan_(plan),
      slices_(slices),
      sequences_(sequences),
      options_(options),
      out_(out),
      into_(into),
      pieces_before_(out.pieces.size()) {
  out_.records.resize(plan.slices.size());
  out_.unrecorded.resize(sequences.size());
  int64_t rows = 0;
  for (const int32_t slice : slices) rows += TotalRows(plan.slices[slice].rows);
  if (rows > 0 && into_ == nullptr) out_.staging.reserve(plan.bytes_to_read / plan.rows_to_read * rows);
  for (size_t i = 0; i < plan.slices.size(); ++i) {
    const int32_t sequence = plan.slices[i].sequence;
    if (!sequences[sequence].live) continue;
    out_.records[i].index = static_cast<int32_t>(i);
    FallBack(sequence);
  }
}

absl::Status StagingSink::OnRecord(const SampleRecord& record) {
  if (record.index == told_) out_.pieces.resize(pieces_before_);
  pieces_before_ = out_.pieces.size();
  told_ = record.index;
  const int32_t slice = slices_[record.index];
  const int32_t sequence = plan_.slices[slice].sequence;
  const FetchSequence& named = sequences_[sequence];
  out_.records[slice] = record;
  out_.records[slice].index = slice;
  const bool readable = record.status == SampleStatus::kOk;
  // kTokensNotKnown is not an error under kLive and kDrop: the sample falls back on every rank that passes token
  // checks, so the ranks still do the same.
  const bool uncompared = record.status == SampleStatus::kTokensNotKnown && options_.missing != MissingPolicy::kStrict;
  if (named.content_id && !uncompared && (!readable || record.content_id != *named.content_id)) {
    return NotAsAgreed(sequence, named, record);
  }
  if (readable) {
    out_.unrecorded[sequence] = record.unrecorded;
    return absl::OkStatus();
  }
  if (options_.missing == MissingPolicy::kStrict) return MissingSample(sequence, named, record);
  FallBack(sequence);
  return absl::OkStatus();
}

absl::Status StagingSink::OnPiece(const ReadPiece& piece) {
  out_.pieces.push_back({.sequence = plan_.slices[slices_[piece.sample_index]].sequence,
                         .layer_begin = piece.layer_begin,
                         .layer_count = piece.layer_count,
                         .rows = piece.rows,
                         .codec = piece.codec,
                         .bit_offset = piece.bit_offset,
                         .offset = into_ == nullptr ? piece.bytes.data() - out_.staging.data() : 0});
  if (into_ == nullptr) return absl::OkStatus();
  MovePiece(into_->layout, into_->rows, out_.pieces.back(), piece.bytes, into_->indices);
  return absl::OkStatus();
}

absl::Status StagingSink::GiveUp(absl::string_view why) {
  for (int32_t index = told_; index < static_cast<int32_t>(slices_.size()); ++index) {
    const SampleStatus status = out_.records[slices_[index]].status;
    if (status != SampleStatus::kOk && status != SampleStatus::kUnspecified) continue;
    RR_RETURN_IF_ERROR(OnRecord({.index = index, .status = SampleStatus::kNotReady, .message = std::string(why)}));
  }
  return absl::OkStatus();
}

void StagingSink::FallBack(int32_t sequence) {
  out_.unrecorded[sequence] = {kAllRows};
  ++out_.fallback_sequences;
}

namespace {

// Returns the row that an inspection requests: the last one that the caller expects. Nothing if the sample has no rows.
std::vector<RowRange> RowToAsk(const FetchSequence& sequence) {
  int64_t rows = 1;
  for (const TokenCheck& check : sequence.token_checks) rows = std::max(rows, check.rows);
  if (sequence.num_tokens) rows = *sequence.num_tokens - 1;
  if (rows < 1) return {};
  return {RowRange::OfSize(rows - 1, 1)};
}

}  // namespace

ReadRequest MakeInspectRequest(const Geometry& geometry, absl::Span<const FetchSequence> sequences,
                               const FetchOptions& options) {
  ReadRequest request{
      .producer = options.producer, .layers = {geometry.layer(0).layer_id}, .wait = options.wait, .only_begun = true};
  for (const FetchSequence& sequence : sequences) {
    request.samples.push_back({.sample = sequence.sample,
                               .handle = sequence.handle,
                               .rows = RowToAsk(sequence),
                               .num_tokens = sequence.num_tokens,
                               .token_checks = sequence.token_checks});
  }
  return request;
}

InspectSink::InspectSink(absl::Span<const FetchSequence> sequences) : records_(sequences.size()) {
  for (size_t i = 0; i < sequences.size(); ++i) records_[i].index = static_cast<int32_t>(i);
}

absl::Status InspectSink::OnRecord(const SampleRecord& record) {
  SampleRecord& kept = records_[record.index];
  kept = record;
  // An unsealed sample may grow, which changes its content id, so ranks could not read later what they agree on now.
  if (record.status == SampleStatus::kOk && !record.num_tokens) {
    kept.status = SampleStatus::kNotReady;
    kept.message = absl::StrCat("not sealed; ", record.committed_rows, " rows committed");
  }
  return absl::OkStatus();
}

absl::Status InspectSink::OnPiece(const ReadPiece&) { return absl::OkStatus(); }

void InspectSink::GiveUp(absl::string_view why) {
  for (SampleRecord& record : records_) {
    if (record.status != SampleStatus::kUnspecified) continue;
    record.status = SampleStatus::kNotReady;
    record.message = std::string(why);
  }
}

}  // namespace routing_replay::trainer
