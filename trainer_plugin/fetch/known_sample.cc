#include "trainer_plugin/fetch/known_sample.h"

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/wire/block/cut.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::trainer {

std::optional<uint32_t> KnownSample::TokenCheckAt(int64_t rows) const {
  if (rows == 0) return 0;
  if (rows > 0 && rows <= static_cast<int64_t>(token_ids.size())) {
    return TokenCheckExtend(0, {reinterpret_cast<const uint8_t*>(token_ids.data()), rows * sizeof(uint32_t)});
  }
  for (const TokenCheck& check : token_checks) {
    if (check.rows == rows) return check.crc32c;
  }
  return std::nullopt;
}

void KnownSample::Judge(const SampleRead& asked, SampleRecord& record) const {
  const auto reject = [&](SampleStatus status, std::string message) {
    record.status = status;
    record.message = std::move(message);
  };
  if (asked.num_tokens && *asked.num_tokens != num_tokens) {
    return reject(SampleStatus::kLengthMismatch,
                  absl::StrCat("has ", num_tokens, " tokens, expected ", *asked.num_tokens));
  }
  const int64_t rows = num_tokens - 1;
  if (!asked.rows.empty() && asked.rows.back().end > rows) {
    return reject(SampleStatus::kOutOfRange,
                  absl::StrCat("requested rows up to ", asked.rows.back().end, ", has ", rows));
  }
  for (const TokenCheck& check : asked.token_checks) {
    const std::optional<uint32_t> known = TokenCheckAt(check.rows);
    if (known == check.crc32c) continue;
    return reject(known ? SampleStatus::kTokensMismatch : SampleStatus::kTokensNotKnown,
                  absl::StrCat(known ? "other tokens" : "tokens not known", " before row ", check.rows));
  }
  if (rows > 0 && TotalRows(unrecorded) == rows) return reject(SampleStatus::kNotRecorded, "without a recorded row");
}

SampleRecord KnownSample::Answer(const SampleRead& asked) const {
  SampleRecord record{.status = SampleStatus::kOk,
                      .committed_rows = num_tokens - 1,
                      .num_tokens = num_tokens,
                      .revision = revision,
                      .content_id = content_id,
                      .unrecorded = unrecorded,
                      .weights = weights};
  Judge(asked, record);
  return record;
}

SampleRecord NoSuchSample(const SampleRead& asked) {
  return {.status = SampleStatus::kNotFound,
          .message = asked.sample.empty() ? absl::StrCat("there is no sample with handle ", asked.handle)
                                          : absl::StrCat("there is no sample \"", asked.sample, "\"")};
}

absl::Status HandleCollision(const std::string& sample, const std::string& other) {
  return MakeError(absl::StatusCode::kAlreadyExists,
                   absl::StrCat("sample \"", sample, "\" has the same handle as sample \"", other, "\""),
                   {.reason = Reason::kHandleCollision, .sample = sample});
}

namespace {

// Stages rows of one block as one piece.
absl::Status StageRows(const Geometry& geometry, const ReplayPlan& plan, const BlockView& block, RowRange rows,
                       int32_t index, StagingSink& sink) {
  std::vector<uint8_t>& staging = *sink.staging();
  const size_t begin = staging.size();
  for (const OwnedLayer& layer : plan.layers) {
    const size_t at = staging.size();
    staging.resize(at + geometry.cut_bytes(layer.ordinal, rows.begin - block.rows.begin, rows.size(), block.codec));
    RR_RETURN_IF_ERROR(CutPlane(geometry, block, layer.ordinal, rows, absl::MakeSpan(staging).subspan(at)).status());
  }
  return sink.OnPiece({.sample_index = index,
                       .layer_begin = 0,
                       .layer_count = static_cast<int32_t>(plan.layers.size()),
                       .rows = rows,
                       .codec = block.codec,
                       .bytes = absl::MakeConstSpan(staging).subspan(begin)});
}

}  // namespace

absl::Status StageBlocks(const Geometry& geometry, const ReplayPlan& plan, absl::Span<const Block> blocks,
                         absl::Span<const RowRange> rows, int32_t index, StagingSink& sink) {
  for (const Block& block : blocks) {
    for (const RowRange asked : Clip(rows, block.rows)) {
      absl::Status status = StageRows(geometry, plan, block.view(), asked, index, sink);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StagedRows> Source::Fetch(const ReplayPlan& plan, absl::Span<const FetchSequence> sequences,
                                         const FetchOptions& options) const {
  RR_RETURN_IF_ERROR(CheckFetch(geometry(), plan, sequences));
  return Fetch(plan, SlicesToRead(plan, sequences), sequences, options);
}

absl::StatusOr<StagedRows> Source::Fetch(const ReplayPlan& plan, absl::Span<const int32_t> slices,
                                         absl::Span<const FetchSequence> sequences, const FetchOptions& options) const {
  absl::Status status = CheckFetch(geometry(), plan, sequences);
  if (!status.ok()) return status;
  StagedRows out;
  StagingSink sink(plan, slices, sequences, options, out);
  const ReadRequest request = MakeReadRequest(plan, slices, sequences, options);
  for (int32_t index = 0; index < static_cast<int32_t>(request.samples.size()); ++index) {
    const SampleRead& asked = request.samples[index];
    SampleRecord record = Inspect(asked, options.producer);
    record.index = index;
    if (status = sink.OnRecord(record); !status.ok()) return status;
    if (record.status != SampleStatus::kOk) continue;
    if (status = Stage(asked, index, plan, sink); !status.ok()) return status;
  }
  return out;
}

}  // namespace routing_replay::trainer
