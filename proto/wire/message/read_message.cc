#include "proto/wire/message/read_message.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "proto/wire/message/message_fields.h"
#include "proto/wire/message/payload_split.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/v1/read.pb.h"

namespace routing_replay {
inline namespace wire {
namespace {

using google::protobuf::Arena;

constexpr int kReadPayloadField = 15;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
// Limit for the message of a record, which is text for people. No server writes a longer one.
constexpr size_t kMaxMessageBytes = 1 << 16;

void SetSampleRead(const SampleRead& sample, v1::SampleRead& out) {
  out.set_sample(sample.sample);
  out.set_handle(sample.handle);
  out.mutable_row_bounds()->Reserve(static_cast<int>(2 * sample.rows.size()));
  for (const RowRange range : sample.rows) {
    out.add_row_bounds(range.begin);
    out.add_row_bounds(range.end);
  }
  if (sample.num_tokens) out.set_num_tokens(*sample.num_tokens);
  for (const TokenCheck& check : sample.token_checks) *out.add_token_checks() = ToProto(check);
  if (sample.min_weight_version) out.set_min_weight_version(*sample.min_weight_version);
  if (sample.max_weight_version) out.set_max_weight_version(*sample.max_weight_version);
}

// Counts the items of an encoded request before the request is built. Returns an upper bound of the memory that it will
// take, as a protobuf message and as a ReadRequest together.
absl::StatusOr<int64_t> MeasureReadRequest(absl::string_view bytes) {
  const auto [samples, checks] = CountFields(bytes, {4, 5});
  if (samples > kMaxReadSamples) {
    return Invalid(Reason::kLength, "samples", absl::StrCat("must have at most ", kMaxReadSamples, " samples"));
  }
  if (checks > kMaxReadTokenChecks) {
    return Invalid(Reason::kLength, "samples",
                   absl::StrCat("must have at most ", kMaxReadTokenChecks, " token_checks in all"));
  }
  // Each byte that is not needed for samples and checks may encode one bound of rows. A bound takes 8 bytes in the
  // protobuf message and 8 in the ReadRequest, and twice as much while vectors grow: 32 bytes in all.
  constexpr size_t kSample = sizeof(v1::SampleRead) + sizeof(SampleRead) + sizeof(void*);
  constexpr size_t kCheck = sizeof(v1::TokenCheck) + sizeof(TokenCheck) + sizeof(void*);
  return static_cast<int64_t>(samples * kSample + checks * kCheck + 32 * (bytes.size() - 2 * (samples + checks)));
}

std::vector<RowRange> RowsOf(const v1::SampleRead& from, MessageFields& f) {
  std::vector<RowRange> rows;
  if (from.row_bounds_size() % 2 != 0) {
    f.FailField("row_bounds", "must have an even number of bounds");
    return rows;
  }
  rows.reserve(from.row_bounds_size() / 2);
  for (int i = 0; i < from.row_bounds_size(); i += 2) {
    rows.push_back(
        {f.Count("row_bounds", from.row_bounds(i), kMaxRows), f.Count("row_bounds", from.row_bounds(i + 1), kMaxRows)});
  }
  f.CheckRanges("row_bounds", rows, {0, kMaxRows});
  return rows;
}

absl::Status TakeSampleRead(v1::SampleRead& from, const FieldPath& path, SampleRead& out) {
  MessageFields f(path);
  out.sample = std::move(*from.mutable_sample());
  out.handle = from.handle();
  out.rows = RowsOf(from, f);
  if (from.has_num_tokens()) out.num_tokens = f.Count("num_tokens", from.num_tokens(), kMaxTokens);
  if (static_cast<size_t>(from.token_checks_size()) > kMaxSampleTokenChecks) {
    f.FailField("token_checks", absl::StrCat("must have at most ", kMaxSampleTokenChecks, " checks"), Reason::kLength);
    return f.status();
  }
  out.token_checks.reserve(from.token_checks_size());
  for (const v1::TokenCheck& check : from.token_checks()) {
    const FieldPath at = path.Child("token_checks", out.token_checks.size());
    MessageFields c(at);
    out.token_checks.push_back({c.Count("rows", check.rows(), kMaxTokens), check.crc32c()});
    f.Fail(c.status());
  }
  if (from.has_min_weight_version()) out.min_weight_version = from.min_weight_version();
  if (from.has_max_weight_version()) out.max_weight_version = from.max_weight_version();
  if (!out.sample.empty()) {
    const absl::Status id = CheckId(out.sample, "sample");
    if (!id.ok()) f.FailField("sample", id.message());
  }
  return f.status();
}

void SetRecord(const SampleRecord& record, v1::SampleRecord& out) {
  out.set_index(record.index);
  out.set_status(static_cast<v1::SampleRecord::SampleStatus>(record.status));
  out.set_message(record.message);
  out.set_committed_rows(record.committed_rows);
  if (record.num_tokens) out.set_num_tokens(*record.num_tokens);
  out.set_revision(record.revision);
  out.set_content_id(record.content_id);
  for (const RowRange range : record.unrecorded) *out.add_unrecorded() = ToProto(range);
  for (const WeightSpan& span : record.weights) *out.add_weights() = ToProto(span);
}

absl::Status TakeRecord(v1::SampleRecord& from, const FieldPath& path, SampleRecord& out) {
  MessageFields f(path);
  out.index = static_cast<int32_t>(f.Count("index", from.index(), kMaxInt32));
  // An unknown status comes from a later version. It is treated as "not OK".
  const bool known = from.status() >= 0 && from.status() <= static_cast<int>(kLastSampleStatus);
  out.status = known ? static_cast<SampleStatus>(from.status()) : SampleStatus::kUnspecified;
  out.message = f.Text("message", from.message(), kMaxMessageBytes);
  out.committed_rows = f.Count("committed_rows", from.committed_rows(), kMaxRows);
  if (from.has_num_tokens()) out.num_tokens = f.Count("num_tokens", from.num_tokens(), kMaxTokens);
  out.revision = f.Count("revision", from.revision());
  out.content_id = from.content_id();
  out.unrecorded = f.Ranges("unrecorded", from.unrecorded());
  f.CheckRanges("unrecorded", out.unrecorded, {0, kMaxRows});
  out.weights = f.Weights("weights", from.weights());
  return f.status();
}

void SetPiece(const Piece& piece, v1::Piece& out) {
  out.set_sample_index(piece.sample_index);
  out.set_layer_begin(piece.layer_begin);
  out.set_layer_count(piece.layer_count);
  out.set_row_begin(piece.rows.begin);
  out.set_rows(piece.rows.size());
  out.set_codec(static_cast<v1::Codec>(piece.codec));
  out.set_bit_offset(piece.bit_offset);
  out.set_bytes(piece.bytes);
  out.mutable_cut_crc32c()->Add(piece.cut_crc32c.begin(), piece.cut_crc32c.end());
}

absl::Status TakePiece(const v1::Piece& from, const FieldPath& path, Piece& out) {
  MessageFields f(path);
  out.sample_index = static_cast<int32_t>(f.Count("sample_index", from.sample_index(), kMaxInt32));
  out.layer_begin = static_cast<int32_t>(f.Count("layer_begin", from.layer_begin(), kMaxMoeLayers));
  out.layer_count = static_cast<int32_t>(f.Count("layer_count", from.layer_count(), kMaxMoeLayers, 1));
  const int64_t begin = f.Count("row_begin", from.row_begin(), kMaxRows);
  out.rows = RowRange::OfSize(begin, f.Count("rows", from.rows(), kMaxBlockRows, 1));
  out.codec = f.ReadCodec("codec", from.codec());
  out.bit_offset = static_cast<int32_t>(f.Count("bit_offset", from.bit_offset(), 7));
  out.bytes = from.bytes();
  out.cut_crc32c.assign(from.cut_crc32c().begin(), from.cut_crc32c().end());
  if (!f.status().ok()) return f.status();
  if (out.codec == Codec::kRaw && out.bit_offset != 0) f.FailField("bit_offset", "must be 0 for RAW");
  if (out.cut_crc32c.size() != static_cast<size_t>(out.layer_count)) {
    f.FailField("cut_crc32c",
                absl::StrCat("must have one value per layer (", out.layer_count, "), got ", out.cut_crc32c.size()));
  }
  return f.status();
}

}  // namespace

std::string EncodeReadRequest(const ReadRequest& request) {
  StackArena arena;
  auto& message = *Arena::CreateMessage<v1::ReadRequest>(arena.get());
  message.set_run(request.run);
  message.set_producer(static_cast<v1::Producer>(request.producer));
  message.mutable_layers()->Add(request.layers.begin(), request.layers.end());
  for (const SampleRead& sample : request.samples) SetSampleRead(sample, *message.add_samples());
  message.set_wait(request.wait);
  message.set_max_message_bytes(request.max_message_bytes);
  message.set_only_begun(request.only_begun);
  return message.SerializeAsString();
}

absl::StatusOr<ReadRequest> ParseReadRequest(const ByteChain& bytes,
                                             const std::function<absl::Status(int64_t)>& admit) {
  Buffer scratch;
  const absl::Span<const uint8_t> flat = bytes.Flatten(scratch);
  RR_ASSIGN_OR_RETURN(const auto size, MeasureReadRequest({reinterpret_cast<const char*>(flat.data()), flat.size()}));
  RR_RETURN_IF_ERROR(admit(size));
  StackArena arena;
  auto& message = *Arena::CreateMessage<v1::ReadRequest>(arena.get());
  if (!message.ParseFromArray(flat.data(), static_cast<int>(flat.size()))) return MalformedMessage();
  MessageFields f;
  ReadRequest request;
  request.run = message.run();
  request.producer = f.ReadProducer("producer", message.producer());
  if (message.layers_size() > kMaxLayers)
    f.FailField("layers", absl::StrCat("must have at most ", kMaxLayers, " layers"), Reason::kLength);
  if (!f.status().ok()) return f.status();
  for (const uint32_t layer : message.layers()) {
    request.layers.push_back(static_cast<int32_t>(f.Count("layers", layer, kMaxLayers - 1)));
  }
  request.samples.resize(message.samples_size());
  for (size_t i = 0; i < request.samples.size() && f.status().ok(); ++i) {
    f.Fail(TakeSampleRead(*message.mutable_samples(static_cast<int>(i)), {.name = "samples", .index = i},
                          request.samples[i]));
  }
  request.wait = message.wait();
  // Only a hint, which the server clamps.
  request.max_message_bytes = static_cast<int32_t>(std::min<int64_t>(message.max_message_bytes(), kMaxInt32));
  request.only_begun = message.only_begun();
  f.Fail(CheckId(request.run, "run"));
  const auto unordered = std::adjacent_find(request.layers.begin(), request.layers.end(), std::greater_equal<>());
  if (unordered != request.layers.end()) {
    f.FailField("layers", absl::StrCat("layer ", *unordered, " must be followed by a higher one"));
  }
  if (!f.status().ok()) return f.status();
  return request;
}

std::string EncodeReadResponse(absl::Span<const SampleRecord> records, absl::Span<const Piece> pieces,
                               size_t payload_size) {
  StackArena arena;
  auto& message = *Arena::CreateMessage<v1::ReadResponse>(arena.get());
  for (const SampleRecord& record : records) SetRecord(record, *message.add_records());
  for (const Piece& piece : pieces) SetPiece(piece, *message.add_pieces());
  std::string bytes = message.SerializeAsString();
  AppendPayloadPrefix(kReadPayloadField, payload_size, bytes);
  return bytes;
}

absl::StatusOr<ReadResponse> ParseReadResponse(const ByteChain& bytes) {
  RR_ASSIGN_OR_RETURN(SplitMessage split, SplitPayload(bytes, kReadPayloadField));
  StackArena arena;
  auto& message = *Arena::CreateMessage<v1::ReadResponse>(arena.get());
  if (!message.ParseFromString(split.header)) return MalformedMessage();
  ReadResponse response;
  response.payload = std::move(split.payload);
  response.records.resize(message.records_size());
  response.pieces.resize(message.pieces_size());
  MessageFields f;
  for (size_t i = 0; i < response.records.size(); ++i) {
    f.Fail(TakeRecord(*message.mutable_records(static_cast<int>(i)), {.name = "records", .index = i},
                      response.records[i]));
  }
  int64_t piece_bytes = 0;
  for (size_t i = 0; i < response.pieces.size(); ++i) {
    f.Fail(TakePiece(message.pieces(static_cast<int>(i)), {.name = "pieces", .index = i}, response.pieces[i]));
    piece_bytes += response.pieces[i].bytes;
  }
  if (piece_bytes != static_cast<int64_t>(response.payload.size())) {
    f.FailField("payload", absl::StrCat(response.payload.size(), " bytes, but the pieces take ", piece_bytes),
                Reason::kLength);
  }
  if (!f.status().ok()) return f.status();
  return response;
}

}  // namespace wire
}  // namespace routing_replay
