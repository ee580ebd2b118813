#include "trainer_plugin/fetch/inspect.h"

#include <algorithm>

namespace routing_replay::trainer {
namespace {

// Nothing where the sample has no rows.
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
  ReadRequest request{.producer = options.producer, .layers = {geometry.layer(0).layer_id}, .wait = options.wait};
  for (const FetchSequence& sequence : sequences) {
    request.samples.push_back({.sample = sequence.sample,
                               .handle = sequence.handle,
                               .rows = RowToAsk(sequence),
                               .num_tokens = sequence.num_tokens,
                               .token_checks = sequence.token_checks});
  }
  return request;
}

InspectSink::InspectSink(size_t samples) : records_(samples) {
  for (size_t i = 0; i < samples; ++i) records_[i].index = static_cast<int32_t>(i);
}

absl::Status InspectSink::OnRecord(const SampleRecord& record) {
  records_[record.index] = record;
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
