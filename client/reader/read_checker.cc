#include "client/reader/read_checker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/checksum.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {

std::vector<RowRange> PromisedRows(const SampleRead& asked, const SampleRecord& record) {
  std::vector<RowRange> rows = asked.rows;
  if (rows.empty()) AppendMerged(rows, {0, record.num_tokens ? *record.num_tokens - 1 : record.committed_rows});
  std::vector<RowRange> recorded;
  for (const RowRange range : rows) {
    for (const RowRange part : Subtract(range, record.unrecorded)) AppendMerged(recorded, part);
  }
  return recorded;
}

absl::StatusOr<std::vector<int32_t>> LayerOrdinals(const Geometry& geometry, absl::Span<const int32_t> layers) {
  std::vector<int32_t> ordinals;
  for (const int32_t layer : layers) {
    const std::optional<int32_t> ordinal = geometry.FindOrdinal(layer);
    if (!ordinal) {
      return Invalid({.reason = Reason::kField, .field = "layers", .layer = layer},
                     absl::StrCat("decoder layer ", layer, " has no routes"));
    }
    ordinals.push_back(*ordinal);
  }
  for (int32_t i = 0; layers.empty() && i < geometry.num_moe_layers(); ++i) ordinals.push_back(i);
  return ordinals;
}

absl::StatusOr<std::unique_ptr<ReadChecker>> ReadChecker::Create(const Geometry& geometry, const ReadRequest& request,
                                                                 ReadSink& sink) {
  RR_ASSIGN_OR_RETURN(auto ordinals, LayerOrdinals(geometry, request.layers));
  auto checker = std::unique_ptr<ReadChecker>(new ReadChecker(geometry, request, sink));
  checker->ordinals_ = std::move(ordinals);
  return checker;
}

absl::Status ReadChecker::OnBytes(const ByteChain& bytes) {
  const auto message = ParseReadResponse(bytes);
  if (message.ok()) return OnMessage(*message);
  failed_.Update(absl::InternalError(absl::StrCat("unreadable message of the server: ", message.status().message())));
  return failed_;
}

absl::Status ReadChecker::OnMessage(const ReadResponse& message) {
  if (failed_.ok()) failed_ = Take(message);
  return failed_;
}

absl::Status ReadChecker::Take(const ReadResponse& message) {
  ChainCursor payload(message.payload);
  auto record = message.records.begin();
  for (const Piece& piece : message.pieces) {
    for (; record != message.records.end() && record->index <= piece.sample_index; ++record) {
      RR_RETURN_IF_ERROR(OnRecord(*record));
    }
    absl::Status status = OnPiece(piece, first_ + piece.sample_index, Gather(payload, piece.bytes));
    if (!status.ok()) return status;
  }
  for (; record != message.records.end(); ++record) {
    RR_RETURN_IF_ERROR(OnRecord(*record));
  }
  return absl::OkStatus();
}

absl::Span<const uint8_t> ReadChecker::Gather(ChainCursor& payload, size_t bytes) {
  std::vector<uint8_t>* staging = sink_.staging();
  if (staging == nullptr) return payload.Take(bytes, scratch_);
  payload.Pass(
      bytes, [staging](absl::Span<const uint8_t> part) { staging->insert(staging->end(), part.begin(), part.end()); });
  return absl::MakeConstSpan(*staging).last(bytes);
}

absl::Status ReadChecker::OnRecord(SampleRecord record) {
  record.index += first_;
  const bool takes_back = record.status == SampleStatus::kLost || record.status == SampleStatus::kUnavailable;
  const bool taken_back = record.index == sample_ && takes_back;
  if (!taken_back) {
    if (record.index != sample_ + 1 || record.index >= static_cast<int64_t>(request_.samples.size())) {
      return Error(absl::StatusCode::kInternal, Reason::kUnspecified,
                   absl::StrCat("the record of sample ", record.index, " is out of order"));
    }
    RR_RETURN_IF_ERROR(EndSample());
    ++sample_;
  }
  expects_pieces_ = record.status == SampleStatus::kOk;
  missing_ = expects_pieces_ ? PromisedRows(request_.samples[sample_], record) : std::vector<RowRange>();
  next_missing_ = 0;
  next_layer_ = 0;
  return sink_.OnRecord(record);
}

absl::Status ReadChecker::OnPiece(const Piece& piece, int32_t sample, absl::Span<const uint8_t> bytes) {
  // The message may still contain pieces of a sample that a second record has replaced.
  if (sample == sample_ && !expects_pieces_) return absl::OkStatus();
  absl::Status status = CheckPlace(piece, sample);
  if (status.ok()) status = CheckBytes(piece, bytes);
  if (!status.ok()) return status;
  return sink_.OnPiece({.sample_index = sample,
                        .layer_begin = piece.layer_begin,
                        .layer_count = piece.layer_count,
                        .rows = piece.rows,
                        .codec = piece.codec,
                        .bit_offset = piece.bit_offset,
                        .bytes = bytes});
}

absl::Status ReadChecker::CheckPlace(const Piece& piece, int32_t sample) {
  const auto layers = static_cast<int32_t>(ordinals_.size());
  const bool continues = next_layer_ > 0;
  const bool begins = !continues && next_missing_ < missing_.size() &&
                      missing_[next_missing_].begin == piece.rows.begin && missing_[next_missing_].contains(piece.rows);
  const bool in_place = sample == sample_ && piece.layer_begin == next_layer_ &&
                        piece.layer_count <= layers - next_layer_ && (continues ? piece.rows == open_rows_ : begins);
  if (!in_place) {
    return Error(absl::StatusCode::kInternal, Reason::kUnspecified,
                 absl::StrCat("a piece of sample ", sample, ", rows ", ToString(piece.rows), ", layers from position ",
                              piece.layer_begin, " was not requested or is out of order"));
  }
  if (begins) {
    open_rows_ = piece.rows;
    missing_[next_missing_].begin = piece.rows.end;
    if (missing_[next_missing_].empty()) ++next_missing_;
  }
  next_layer_ += piece.layer_count;
  if (next_layer_ == layers) next_layer_ = 0;
  return absl::OkStatus();
}

absl::Status ReadChecker::CheckBytes(const Piece& piece, absl::Span<const uint8_t> bytes) const {
  for (int32_t i = 0; i < piece.layer_count; ++i) {
    const int32_t ordinal = ordinals_[piece.layer_begin + i];
    const int64_t size = geometry_.cut_bytes_at(ordinal, piece.bit_offset, piece.rows.size(), piece.codec);
    if (size > static_cast<int64_t>(bytes.size())) {
      return Error(absl::StatusCode::kInternal, Reason::kLength,
                   absl::StrCat("a piece of rows ", ToString(piece.rows), " has too few bytes for its layers"));
    }
    if (Crc32c(bytes.first(size)) != piece.cut_crc32c[i]) {
      const int32_t layer = geometry_.layer(ordinal).layer_id;
      return MakeError(absl::StatusCode::kDataLoss,
                       absl::StrCat("sample ", SampleName(), ": layer ", layer, ", rows ", ToString(piece.rows),
                                    ": the bytes do not match their CRC32C"),
                       {.reason = Reason::kChecksum,
                        .field = "payload",
                        .sample = SampleName(),
                        .row = piece.rows.begin,
                        .layer = layer});
    }
    bytes.remove_prefix(size);
  }
  if (bytes.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kInternal, Reason::kLength,
               absl::StrCat("a piece of rows ", ToString(piece.rows), " has too many bytes for its layers"));
}

absl::Status ReadChecker::EndSample() const {
  if (!expects_pieces_ || (next_layer_ == 0 && next_missing_ == missing_.size())) return absl::OkStatus();
  const RowRange first = next_layer_ > 0 ? open_rows_ : missing_[next_missing_];
  return Error(absl::StatusCode::kDataLoss, Reason::kUnspecified,
               absl::StrCat("rows from ", first.begin, " on are incomplete"));
}

absl::Status ReadChecker::OnEnd() {
  if (!failed_.ok()) return failed_;
  RR_RETURN_IF_ERROR(EndSample());
  const auto samples = static_cast<int64_t>(request_.samples.size());
  if (sample_ + 1 == samples) {
    complete_ = true;
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("the read ended after ", sample_ + 1, " of ", samples, " samples"));
}

void ReadChecker::OnBreak() {
  const bool has_present = sample_ >= first_ && EndSample().ok();
  first_ = std::max(first_, has_present ? sample_ + 1 : sample_);
  part_.samples.assign(request_.samples.begin() + first_, request_.samples.end());
  complete_ = first_ > 0 && part_.samples.empty();
  sample_ = first_ - 1;
  expects_pieces_ = false;
}

absl::Status ReadChecker::Error(absl::StatusCode code, Reason reason, absl::string_view what) const {
  return MakeError(code, absl::StrCat("sample ", SampleName(), ": ", what), {.reason = reason, .sample = SampleName()});
}

std::string ReadChecker::SampleName() const {
  if (sample_ < 0) return "(none yet)";
  const SampleRead& asked = request_.samples[sample_];
  return DescribeSample(asked.sample, asked.handle);
}

}  // namespace routing_replay::client
