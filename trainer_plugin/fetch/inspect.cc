#include "trainer_plugin/fetch/inspect.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace routing_replay::trainer {
namespace {

constexpr int64_t kNoRows = 0;

// Rows that the sample must have by what is said of it.
int64_t ExpectedRows(const FetchSequence& sequence) {
  if (sequence.num_tokens) return *sequence.num_tokens > 1 ? *sequence.num_tokens - 1 : kNoRows;
  int64_t rows = kNoRows;
  for (const TokenCheck& check : sequence.token_checks) rows = std::max(rows, check.rows);
  return rows;
}

// Whether the sample may have no row at all: of one token.
bool MayHaveNoRows(const FetchSequence& sequence) { return !sequence.num_tokens && ExpectedRows(sequence) == kNoRows; }

// Nothing where the sample has no rows.
std::vector<RowRange> RowToAsk(const FetchSequence& sequence) {
  if (MayHaveNoRows(sequence)) return {RowRange::OfSize(0, 1)};
  const int64_t rows = ExpectedRows(sequence);
  if (rows == kNoRows) return {};
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
  for (size_t i = 0; i < sequences.size(); ++i) {
    records_[i].index = static_cast<int32_t>(i);
    may_have_no_rows_.push_back(MayHaveNoRows(sequences[i]));
  }
}

absl::Status InspectSink::OnRecord(const SampleRecord& record) {
  SampleRecord& kept = records_[record.index];
  kept = record;
  // A row was asked for only to ask at all. A read of all rows of this sample finds that none is missing.
  if (record.status == SampleStatus::kOutOfRange && record.num_tokens == 1 && may_have_no_rows_[record.index]) {
    kept.status = SampleStatus::kOk;
    kept.message.clear();
  }
  // What ranks agree on must be what each of them reads later: an unsealed sample grows, and its content id with it.
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
