#include "proto/wire/message/append_message.h"

#include <utility>

#include "proto/wire/message/message_reader.h"
#include "proto/wire/message/payload_split.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr int kPayloadField = 15;
constexpr size_t kMaxTensorRank = 8;  // Far above what is ever accepted; the decoder says which rank it wants.

std::string EncodePrefix(const PrefixReference& prefix) {
  ProtobufWriter w;
  w.Bytes(1, prefix.sample);
  w.Int(2, prefix.rows);
  w.Int(3, prefix.revision);
  return w.Take();
}

std::string EncodeTensor(const TensorDescription& tensor) {
  ProtobufWriter w;
  w.Int(1, static_cast<int64_t>(tensor.encoding));
  w.Int(2, static_cast<int64_t>(tensor.compression));
  w.Int(3, tensor.raw_size);
  w.Int(4, static_cast<int64_t>(tensor.dtype));
  w.PackedVarint(5, tensor.shape);
  w.Int(6, static_cast<int64_t>(tensor.layer_basis));
  w.PackedVarint(7, tensor.layer_ids);
  return w.Take();
}

std::string EncodeBlock(const BlockHeader& block) {
  ProtobufWriter w;
  w.Int(1, block.rows.begin);
  w.Int(2, block.rows.size());
  w.Int(3, static_cast<int64_t>(block.codec));
  w.PackedFixed32(4, block.plane_crc32c);
  return w.Take();
}

void EncodePayloadKind(const AppendHeader& header, ProtobufWriter& w) {
  if (const auto* tensor = std::get_if<TensorDescription>(&header.payload_kind)) {
    w.BytesAlways(20, EncodeTensor(*tensor));
  }
  if (const auto* blocks = std::get_if<std::vector<BlockHeader>>(&header.payload_kind)) {
    ProtobufWriter list;
    for (const BlockHeader& block : *blocks) list.BytesAlways(1, EncodeBlock(block));
    w.BytesAlways(21, list.bytes());
  }
}

std::string EncodeHeader(const AppendHeader& header) {
  ProtobufWriter w;
  w.Varint(1, header.append_id);
  w.Bytes(2, header.sample);
  w.Int(3, static_cast<int64_t>(header.producer));
  w.Int(4, header.rows.begin);
  w.Int(5, header.rows.size());
  for (const RowRange range : header.unrecorded) w.BytesAlways(6, EncodeRowRange(range));
  w.Int(7, header.revision);
  w.Fixed64(8, header.restart_nonce);
  if (header.group) w.IntAlways(9, *header.group);
  if (header.weight_version != kUnknownWeightVersion) w.IntAlways(10, header.weight_version);
  w.Bytes(11, header.weight_label);
  w.Bytes(12, header.token_ids);
  if (header.token_check_start) w.Fixed32Always(13, *header.token_check_start);
  if (header.seal_num_tokens) w.IntAlways(14, *header.seal_num_tokens);
  if (header.prefix) w.BytesAlways(15, EncodePrefix(*header.prefix));
  w.Bytes(16, header.engine);
  w.Fixed64(17, header.resend_key);
  EncodePayloadKind(header, w);
  return w.Take();
}

// An enum that must not be above `last`, and not 0 unless `zero_is` says what 0 is taken as.
template <typename Enum>
Enum ReadEnum(MessageReader& r, const char* name, Enum last, std::optional<Enum> zero_is, Reason reason) {
  const uint64_t value = r.Unsigned(name);
  if (value == 0 && zero_is) return *zero_is;
  if (value != 0 && value <= static_cast<uint64_t>(last)) return static_cast<Enum>(value);
  r.Fail(FieldError(r.path().Child(name), value == 0 ? "missing" : absl::StrCat("unknown value ", value), reason));
  return last;
}

absl::StatusOr<TensorDescription> ParseTensor(absl::string_view bytes, const FieldPath& path) {
  TensorDescription tensor;
  bool has_encoding = false;
  MessageReader r(bytes, path);
  while (r.Next()) {
    switch (r.field()) {
      case 1:
        tensor.encoding = ReadEnum<Encoding>(r, "encoding", Encoding::kBase64Npy, std::nullopt, Reason::kField);
        has_encoding = true;
        break;
      case 2:
        tensor.compression =
            ReadEnum<Compression>(r, "compression", Compression::kZstd, Compression::kNone, Reason::kField);
        break;
      case 3:
        tensor.raw_size = r.Count("raw_size");
        break;
      case 4:
        tensor.dtype = ReadEnum<DType>(r, "dtype", DType::kI64, DType::kUnspecified, Reason::kDType);
        break;
      case 5:
        r.PackedCounts("shape", kMaxInt64, kMaxTensorRank, tensor.shape, Reason::kShape);
        break;
      case 6:
        tensor.layer_basis =
            ReadEnum<LayerBasis>(r, "layer_basis", LayerBasis::kExplicit, LayerBasis::kUnspecified, Reason::kField);
        break;
      case 7:
        r.PackedCounts("layer_ids", kMaxLayers - 1, kMaxLayers, tensor.layer_ids, Reason::kShape);
        break;
      default:
        break;
    }
  }
  if (!has_encoding) r.FailField("encoding", "missing");
  if (!r.status().ok()) return r.status();
  return tensor;
}

absl::StatusOr<BlockHeader> ParseBlock(absl::string_view bytes, const FieldPath& path) {
  BlockHeader block;
  int64_t row_start = 0, rows = 0;
  bool has_codec = false;
  MessageReader r(bytes, path);
  while (r.Next()) {
    switch (r.field()) {
      case 1:
        row_start = r.Count("row_start", kMaxRows);
        break;
      case 2:
        rows = r.Count("rows", kMaxBlockRows);
        break;
      case 3:
        block.codec = r.ReadCodec("codec");
        has_codec = true;
        break;
      case 4:
        r.PackedFixed32("plane_crc32c", block.plane_crc32c);
        break;
      default:
        break;
    }
  }
  if (rows == 0) r.FailField("rows", "a block has at least one row");
  if (!has_codec) r.FailField("codec", "missing");
  if (!r.status().ok()) return r.status();
  block.rows = RowRange::OfSize(row_start, rows);
  return block;
}

absl::StatusOr<std::vector<BlockHeader>> ParseBlocks(absl::string_view bytes, const FieldPath& path) {
  std::vector<BlockHeader> blocks;
  MessageReader r(bytes, path);
  while (r.Next()) {
    if (r.field() != 1) continue;
    absl::StatusOr<BlockHeader> block = ParseBlock(r.Bytes("blocks"), path.Child("blocks", blocks.size()));
    if (!block.ok()) return block.status();
    if (BlockHeader* added = r.Add("blocks", kMaxBlocks, blocks)) *added = *std::move(block);
  }
  if (!r.status().ok()) return r.status();
  return blocks;
}

absl::StatusOr<PrefixReference> ParsePrefix(absl::string_view bytes, const FieldPath& path) {
  PrefixReference prefix;
  MessageReader r(bytes, path);
  while (r.Next()) {
    switch (r.field()) {
      case 1:
        prefix.sample = std::string(r.Bytes("sample"));
        break;
      case 2:
        prefix.rows = r.Count("rows", kMaxRows);
        break;
      case 3:
        prefix.revision = r.Count("revision");
        break;
      default:
        break;
    }
  }
  r.Fail(CheckId(prefix.sample, path.Child("sample").ToString()));
  if (!r.status().ok()) return r.status();
  return prefix;
}

// What holds between fields.
absl::Status CheckHeader(const AppendHeader& header, const FieldPath& path) {
  if (header.rows.end > kMaxRows) {
    return FieldError(path.Child("rows"), absl::StrCat("rows up to ", header.rows.end, "; at most ", kMaxRows));
  }
  absl::Status status = CheckId(header.sample, path.Child("sample").ToString());
  status.Update(CheckNormalField(header.unrecorded, header.rows, path.Child("unrecorded")));
  if (!status.ok()) return status;
  const auto token_bytes = static_cast<int64_t>(header.token_ids.size());
  if (token_bytes != 0 && token_bytes != 4 * header.rows.size()) {
    return FieldError(path.Child("token_ids"),
                      absl::StrCat(token_bytes, " bytes for ", header.rows.size(), " rows; 4 per row or none"),
                      Reason::kLength);
  }
  return absl::OkStatus();
}

// The fields that say whose rows these are and which.
void ParseHeaderKey(MessageReader& r, AppendHeader& header, RowRange& raw_rows) {
  switch (r.field()) {
    case 1:
      header.append_id = r.Unsigned("append_id");
      break;
    case 2:
      header.sample = std::string(r.Bytes("sample"));
      break;
    case 3:
      header.producer = r.ReadProducer("producer");
      break;
    case 4:
      raw_rows.begin = r.Count("row_start", kMaxRows);
      break;
    case 5:
      raw_rows.end = r.Count("rows", kMaxRows);
      break;
    case 6:
      if (RowRange* range = r.Add("unrecorded", kMaxUnrecordedRanges, header.unrecorded)) {
        r.Fail(
            ParseRowRange(r.Bytes("unrecorded"), r.path().Child("unrecorded", header.unrecorded.size() - 1), *range));
      }
      break;
    case 7:
      header.revision = r.Count("revision");
      break;
    case 8:
      header.restart_nonce = r.Fixed64("restart_nonce");
      break;
    default:
      break;
  }
}

template <typename T, typename Out>
void Take(MessageReader& r, absl::StatusOr<T> parsed, Out& out) {
  if (parsed.ok()) {
    out = *std::move(parsed);
  } else {
    r.Fail(parsed.status());
  }
}

void ParseHeaderRest(MessageReader& r, AppendHeader& header) {
  switch (r.field()) {
    case 9:
      header.group = r.Signed("group");
      break;
    case 10:
      header.weight_version = r.Signed("weight_version");
      if (header.weight_version < kUnknownWeightVersion) r.FailField("weight_version", "below -1");
      break;
    case 11:
      header.weight_label = r.Text("weight_label", kMaxLabelBytes);
      break;
    case 12:
      header.token_ids = std::string(r.Bytes("token_ids"));
      break;
    case 13:
      header.token_check_start = r.Fixed32("token_check_start");
      break;
    case 14:
      header.seal_num_tokens = r.Count("seal_num_tokens", kMaxTokens, 1);
      break;
    case 15:
      Take(r, ParsePrefix(r.Bytes("prefix"), r.path().Child("prefix")), header.prefix);
      break;
    case 16:
      header.engine = r.Text("engine", kMaxLabelBytes);
      break;
    case 17:
      header.resend_key = r.Fixed64("resend_key");
      break;
    case 20:
      Take(r, ParseTensor(r.Bytes("tensor"), r.path().Child("tensor")), header.payload_kind);
      break;
    case 21:
      Take(r, ParseBlocks(r.Bytes("blocks"), r.path().Child("blocks")), header.payload_kind);
      break;
    default:
      break;
  }
}

absl::StatusOr<AppendHeader> ParseHeader(absl::string_view bytes, const FieldPath& path) {
  AppendHeader header;
  RowRange start_and_count;  // row_start and rows as they stand on the wire.
  MessageReader r(bytes, path);
  while (r.Next()) {
    ParseHeaderKey(r, header, start_and_count);
    ParseHeaderRest(r, header);
  }
  if (!r.status().ok()) return r.status();
  header.rows = RowRange::OfSize(start_and_count.begin, start_and_count.end);
  if (const absl::Status status = CheckHeader(header, path); !status.ok()) return status;
  return header;
}

}  // namespace

std::string EncodeAppendRequest(const AppendRequest& request, size_t payload_size) {
  ProtobufWriter w;
  w.Bytes(1, request.run);
  w.Varint(2, request.want_bytes);
  if (request.append) w.BytesAlways(3, EncodeHeader(*request.append));
  if (payload_size != 0) w.BytesPrefix(kPayloadField, payload_size);
  return w.Take();
}

absl::StatusOr<AppendRequest> ParseAppendRequest(const ByteChain& bytes) {
  absl::StatusOr<SplitMessage> split = SplitPayload(bytes, kPayloadField);
  if (!split.ok()) return split.status();
  AppendRequest request;
  request.payload = std::move(split->payload);
  const FieldPath root;
  MessageReader r(split->header, root);
  while (r.Next()) {
    switch (r.field()) {
      case 1:
        request.run = std::string(r.Bytes("run"));
        if (!request.run.empty()) r.Fail(CheckId(request.run, "run"));
        break;
      case 2:
        request.want_bytes = r.Unsigned("want_bytes");
        break;
      case 3:
        Take(r, ParseHeader(r.Bytes("append"), root.Child("append")), request.append);
        break;
      default:
        break;
    }
  }
  if (!request.append && request.payload.size() != 0) r.FailField("payload", "bytes without an append");
  if (!r.status().ok()) return r.status();
  return request;
}

std::optional<RefusedAppend> ParseRefusedAppend(const ByteChain& bytes) {
  const absl::StatusOr<SplitMessage> split = SplitPayload(bytes, kPayloadField);
  if (!split.ok()) return std::nullopt;
  RefusedAppend refused{.payload_bytes = split->payload.size()};
  std::optional<absl::string_view> header;
  ProtobufReader r(split->header);
  while (r.Next()) {
    if (r.field() == 1) refused.run = std::string(r.bytes());
    if (r.field() == 2) refused.want_bytes = r.varint();
    if (r.field() == 3) header = r.bytes();
  }
  if (!r.ok() || !header) return std::nullopt;
  if (!refused.run.empty() && !CheckId(refused.run, "run").ok()) return std::nullopt;
  // Of a malformed header, what stands before the damage still counts.
  ProtobufReader fields(*header);
  while (fields.Next()) {
    if (fields.field() == 1) refused.append_id = fields.varint();
    if (fields.field() == 2) refused.sample = std::string(fields.bytes());
  }
  if (!CheckId(refused.sample, "append.sample").ok()) refused.sample.clear();
  return refused;
}

}  // namespace wire
}  // namespace routing_replay
