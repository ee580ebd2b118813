#include "proto/wire/message/read_message.h"

#include <limits>
#include <utility>

#include "proto/wire/message/message_reader.h"
#include "proto/wire/message/payload_split.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr int kPayloadField = 15;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
// Bounds ascend.
constexpr size_t kMaxRowBounds = kMaxRows + 1;
// Why a record says what it says is for people; longer than any server makes it.
constexpr size_t kMaxMessageBytes = 1 << 16;

absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string EncodeTokenCheck(const TokenCheck& check) {
  ProtobufWriter w;
  w.Int(1, check.rows);
  w.Fixed32Always(2, check.crc32c);
  return w.Take();
}

absl::Status ParseTokenCheck(absl::string_view bytes, const FieldPath& path, TokenCheck& out) {
  MessageReader r(bytes, path);
  while (r.Next()) {
    if (r.field() == 1) out.rows = r.Count("rows", kMaxTokens);
    if (r.field() == 2) out.crc32c = r.Fixed32("crc32c");
  }
  return r.status();
}

std::string EncodeWeightSpan(const WeightSpan& span) {
  ProtobufWriter w;
  w.BytesAlways(1, EncodeRowRange(span.rows));
  w.Int(2, span.version);
  w.Bytes(3, span.label);
  return w.Take();
}

absl::Status ParseWeightSpan(absl::string_view bytes, const FieldPath& path, WeightSpan& out) {
  out.version = 0;  // What an absent field of the message means.
  MessageReader r(bytes, path);
  while (r.Next()) {
    if (r.field() == 1) r.Fail(ParseRowRange(r.Bytes("rows"), path.Child("rows"), out.rows));
    if (r.field() == 2) out.version = r.Signed("version");
    if (r.field() == 3) out.label = r.Text("label", kMaxLabelBytes);
  }
  return r.status();
}

std::string EncodeSampleRead(const SampleRead& sample) {
  std::vector<int64_t> bounds;
  bounds.reserve(2 * sample.rows.size());
  for (const RowRange range : sample.rows) bounds.insert(bounds.end(), {range.begin, range.end});
  ProtobufWriter w;
  w.Bytes(1, sample.sample);
  w.Fixed64(2, static_cast<uint64_t>(sample.handle));
  w.PackedVarint(3, bounds);
  if (sample.num_tokens) w.IntAlways(4, *sample.num_tokens);
  for (const TokenCheck& check : sample.token_checks) w.BytesAlways(5, EncodeTokenCheck(check));
  if (sample.min_weight_version) w.IntAlways(6, *sample.min_weight_version);
  if (sample.max_weight_version) w.IntAlways(7, *sample.max_weight_version);
  return w.Take();
}

// What a request will be when it is parsed.
struct RequestSize {
  size_t samples = 0;
  size_t token_checks = 0;
  int64_t bytes = 0;
};

absl::Status AddSampleSize(absl::string_view bytes, const FieldPath& path, RequestSize& size) {
  size_t checks = 0, bounds = 0, text = 0;
  ProtobufReader r(bytes);
  while (r.Next()) {
    if (r.field() == 1) text = r.bytes().size();
    if (r.field() == 3) r.RepeatedVarint([&](uint64_t) { ++bounds; });
    if (r.field() == 5) ++checks;
  }
  size.token_checks += checks;
  if (checks > kMaxSampleTokenChecks || size.token_checks > kMaxReadTokenChecks) {
    const size_t limit = checks > kMaxSampleTokenChecks ? kMaxSampleTokenChecks : kMaxReadTokenChecks;
    return FieldError(path.Child("token_checks"), absl::StrCat("more than ", limit), Reason::kLength);
  }
  // Vectors that grow have twice their elements at most.
  size.bytes +=
      static_cast<int64_t>(sizeof(SampleRead) + text + 2 * sizeof(TokenCheck) * checks + sizeof(RowRange) * bounds / 2);
  return absl::OkStatus();
}

// Walks the message, which need not be well-formed, and builds nothing.
absl::StatusOr<RequestSize> MeasureReadRequest(absl::string_view bytes) {
  RequestSize size;
  const FieldPath root;
  ProtobufReader r(bytes);
  while (r.Next()) {
    if (r.field() != 4) continue;
    if (size.samples == kMaxReadSamples) {
      return FieldError(root.Child("samples"), absl::StrCat("more than ", kMaxReadSamples), Reason::kLength);
    }
    absl::Status status = AddSampleSize(r.bytes(), root.Child("samples", size.samples++), size);
    if (!status.ok()) return status;
  }
  return size;
}

void TakeRowBounds(MessageReader& r, absl::Span<const int64_t> bounds, std::vector<RowRange>& out) {
  if (bounds.size() % 2 != 0) return r.FailField("row_bounds", "an odd number of bounds");
  out.reserve(bounds.size() / 2);
  for (size_t i = 0; i < bounds.size(); i += 2) out.push_back({bounds[i], bounds[i + 1]});
  r.Fail(CheckNormalField(out, {0, kMaxRows}, r.path().Child("row_bounds")));
}

absl::Status ParseSampleRead(absl::string_view bytes, const FieldPath& path, SampleRead& out) {
  std::vector<int64_t> bounds;
  MessageReader r(bytes, path);
  while (r.Next()) {
    switch (r.field()) {
      case 1:
        out.sample = std::string(r.Bytes("sample"));
        break;
      case 2:
        out.handle = static_cast<int64_t>(r.Fixed64("handle"));
        break;
      case 3:
        r.PackedCounts("row_bounds", kMaxRows, kMaxRowBounds, bounds);
        break;
      case 4:
        out.num_tokens = r.Count("num_tokens", kMaxTokens);
        break;
      case 5:
        out.token_checks.emplace_back();
        r.Fail(ParseTokenCheck(r.Bytes("token_checks"), path.Child("token_checks", out.token_checks.size() - 1),
                               out.token_checks.back()));
        break;
      case 6:
        out.min_weight_version = r.Signed("min_weight_version");
        break;
      case 7:
        out.max_weight_version = r.Signed("max_weight_version");
        break;
      default:
        break;
    }
  }
  if (r.status().ok()) TakeRowBounds(r, bounds, out.rows);
  if (r.status().ok() && !out.sample.empty()) {
    const absl::Status status = CheckId(out.sample, "sample");
    if (!status.ok()) r.FailField("sample", status.message());
  }
  return r.status();
}

std::string EncodeRecord(const SampleRecord& record) {
  ProtobufWriter w;
  w.Int(1, record.index);
  w.Int(2, static_cast<int64_t>(record.status));
  w.Bytes(3, record.message);
  w.Int(4, record.committed_rows);
  if (record.num_tokens) w.IntAlways(5, *record.num_tokens);
  w.Int(6, record.revision);
  w.Fixed64(7, record.content_id);
  for (const RowRange range : record.unrecorded) w.BytesAlways(8, EncodeRowRange(range));
  for (const WeightSpan& span : record.weights) w.BytesAlways(9, EncodeWeightSpan(span));
  return w.Take();
}

// A status of a later version is not OK, and more is not known of it here.
SampleStatus ReadSampleStatus(MessageReader& r) {
  const uint64_t value = r.Unsigned("status");
  const bool known = value <= static_cast<uint64_t>(kLastSampleStatus);
  return known ? static_cast<SampleStatus>(value) : SampleStatus::kUnspecified;
}

absl::Status ParseRecord(absl::string_view bytes, const FieldPath& path, SampleRecord& out) {
  MessageReader r(bytes, path);
  while (r.Next()) {
    switch (r.field()) {
      case 1:
        out.index = static_cast<int32_t>(r.Count("index", kMaxInt32));
        break;
      case 2:
        out.status = ReadSampleStatus(r);
        break;
      case 3:
        out.message = r.Text("message", kMaxMessageBytes);
        break;
      case 4:
        out.committed_rows = r.Count("committed_rows", kMaxRows);
        break;
      case 5:
        out.num_tokens = r.Count("num_tokens", kMaxTokens);
        break;
      case 6:
        out.revision = r.Count("revision");
        break;
      case 7:
        out.content_id = r.Fixed64("content_id");
        break;
      case 8:
        out.unrecorded.emplace_back();
        r.Fail(ParseRowRange(r.Bytes("unrecorded"), path.Child("unrecorded", out.unrecorded.size() - 1),
                             out.unrecorded.back()));
        break;
      case 9:
        out.weights.emplace_back();
        r.Fail(ParseWeightSpan(r.Bytes("weights"), path.Child("weights", out.weights.size() - 1), out.weights.back()));
        break;
      default:
        break;
    }
  }
  r.Fail(CheckNormalField(out.unrecorded, {0, kMaxRows}, path.Child("unrecorded")));
  return r.status();
}

std::string EncodePiece(const Piece& piece) {
  ProtobufWriter w;
  w.Int(1, piece.sample_index);
  w.Int(2, piece.layer_begin);
  w.Int(3, piece.layer_count);
  w.Int(4, piece.rows.begin);
  w.Int(5, piece.rows.size());
  w.Int(6, static_cast<int64_t>(piece.codec));
  w.Int(7, piece.bit_offset);
  w.Int(8, piece.bytes);
  w.PackedFixed32(9, piece.cut_crc32c);
  return w.Take();
}

void CheckPiece(MessageReader& r, const Piece& piece, bool has_codec) {
  if (!has_codec) r.FailField("codec", "missing");
  if (piece.rows.empty()) r.FailField("rows", "a piece has at least one row");
  if (piece.layer_count == 0) r.FailField("layer_count", "a piece has at least one layer");
  if (piece.codec == Codec::kRaw && piece.bit_offset != 0) r.FailField("bit_offset", "RAW starts on a byte");
  if (piece.cut_crc32c.size() != static_cast<size_t>(piece.layer_count)) {
    r.FailField("cut_crc32c", absl::StrCat(piece.cut_crc32c.size(), " values for ", piece.layer_count, " layers"));
  }
}

absl::Status ParsePiece(absl::string_view bytes, const FieldPath& path, Piece& out) {
  int64_t row_begin = 0, rows = 0;
  bool has_codec = false;
  MessageReader r(bytes, path);
  while (r.Next()) {
    switch (r.field()) {
      case 1:
        out.sample_index = static_cast<int32_t>(r.Count("sample_index", kMaxInt32));
        break;
      case 2:
        out.layer_begin = static_cast<int32_t>(r.Count("layer_begin", kMaxMoeLayers));
        break;
      case 3:
        out.layer_count = static_cast<int32_t>(r.Count("layer_count", kMaxMoeLayers));
        break;
      case 4:
        row_begin = r.Count("row_begin", kMaxRows);
        break;
      case 5:
        rows = r.Count("rows", kMaxBlockRows);
        break;
      case 6:
        out.codec = r.ReadCodec("codec");
        has_codec = true;
        break;
      case 7:
        out.bit_offset = static_cast<int32_t>(r.Count("bit_offset", 7));
        break;
      case 8:
        out.bytes = r.Count("bytes", kMaxUint32);
        break;
      case 9:
        r.PackedFixed32("cut_crc32c", out.cut_crc32c);
        break;
      default:
        break;
    }
  }
  out.rows = RowRange::OfSize(row_begin, rows);
  if (r.status().ok()) CheckPiece(r, out, has_codec);
  return r.status();
}

}  // namespace

std::string EncodeReadRequest(const ReadRequest& request) {
  ProtobufWriter w;
  w.Bytes(1, request.run);
  w.Int(2, static_cast<int64_t>(request.producer));
  w.PackedVarint(3, request.layers);
  for (const SampleRead& sample : request.samples) w.BytesAlways(4, EncodeSampleRead(sample));
  w.Varint(5, request.wait ? 1 : 0);
  w.Int(6, request.max_message_bytes);
  w.Varint(7, request.only_begun ? 1 : 0);
  return w.Take();
}

absl::StatusOr<ReadRequest> ParseReadRequest(const ByteChain& bytes,
                                             const std::function<absl::Status(int64_t)>& admit) {
  Buffer scratch;
  const absl::string_view text = AsText(bytes.Flatten(scratch));
  const absl::StatusOr<RequestSize> size = MeasureReadRequest(text);
  if (!size.ok()) return size.status();
  if (absl::Status status = admit(size->bytes); !status.ok()) return status;
  ReadRequest request;
  request.samples.reserve(size->samples);
  const FieldPath root;
  MessageReader r(text, root);
  while (r.Next()) {
    switch (r.field()) {
      case 1:
        request.run = std::string(r.Bytes("run"));
        break;
      case 2:
        request.producer = r.ReadProducer("producer");
        break;
      case 3:
        r.PackedCounts("layers", kMaxLayers - 1, kMaxLayers, request.layers);
        break;
      case 4:
        request.samples.emplace_back();
        r.Fail(ParseSampleRead(r.Bytes("samples"), root.Child("samples", request.samples.size() - 1),
                               request.samples.back()));
        break;
      case 5:
        request.wait = r.Unsigned("wait") != 0;
        break;
      case 6:
        // Only a hint that the server clamps.
        request.max_message_bytes =
            static_cast<int32_t>(std::min<uint64_t>(r.Unsigned("max_message_bytes"), kMaxInt32));
        break;
      case 7:
        request.only_begun = r.Unsigned("only_begun") != 0;
        break;
      default:
        break;
    }
  }
  r.Fail(CheckId(request.run, "run"));
  const auto unordered = std::adjacent_find(request.layers.begin(), request.layers.end(), std::greater_equal<>());
  if (unordered != request.layers.end()) {
    r.FailField("layers", absl::StrCat("layer ", *unordered, " is not followed by a higher one"));
  }
  if (!r.status().ok()) return r.status();
  return request;
}

std::string EncodeReadResponse(absl::Span<const SampleRecord> records, absl::Span<const Piece> pieces,
                               size_t payload_size) {
  ProtobufWriter w;
  for (const SampleRecord& record : records) w.BytesAlways(1, EncodeRecord(record));
  for (const Piece& piece : pieces) w.BytesAlways(2, EncodePiece(piece));
  if (payload_size != 0) w.BytesPrefix(kPayloadField, payload_size);
  return w.Take();
}

absl::StatusOr<ReadResponse> ParseReadResponse(const ByteChain& bytes) {
  absl::StatusOr<SplitMessage> split = SplitPayload(bytes, kPayloadField);
  if (!split.ok()) return split.status();
  ReadResponse response;
  response.payload = std::move(split->payload);
  int64_t piece_bytes = 0;
  const FieldPath root;
  MessageReader r(split->header, root);
  while (r.Next()) {
    if (r.field() == 1) {
      response.records.emplace_back();
      r.Fail(
          ParseRecord(r.Bytes("records"), root.Child("records", response.records.size() - 1), response.records.back()));
    } else if (r.field() == 2) {
      response.pieces.emplace_back();
      r.Fail(ParsePiece(r.Bytes("pieces"), root.Child("pieces", response.pieces.size() - 1), response.pieces.back()));
      piece_bytes += response.pieces.back().bytes;
    }
  }
  if (piece_bytes != static_cast<int64_t>(response.payload.size())) {
    r.Fail(FieldError(root.Child("payload"),
                      absl::StrCat(response.payload.size(), " bytes for pieces of ", piece_bytes), Reason::kLength));
  }
  if (!r.status().ok()) return r.status();
  return response;
}

}  // namespace wire
}  // namespace routing_replay
