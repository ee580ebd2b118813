#include "proto/wire/message/append_message.h"

#include <utility>

#include "proto/wire/message/message_fields.h"
#include "proto/wire/message/payload_split.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/v1/append.pb.h"

namespace routing_replay {
inline namespace wire {
namespace {

constexpr int kAppendPayloadField = 15;
constexpr int kMaxTensorRank = 8;  // Only bounds memory: the decoder then requires three axes.

void SetTensor(const TensorDescription& tensor, v1::TensorPayload& out) {
  out.set_encoding(static_cast<v1::TensorPayload::Encoding>(tensor.encoding));
  out.set_compression(static_cast<v1::TensorPayload::Compression>(tensor.compression));
  out.set_raw_size(tensor.raw_size);
  out.set_dtype(static_cast<v1::TensorPayload::DType>(tensor.dtype));
  out.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  out.set_layer_basis(static_cast<v1::TensorPayload::LayerBasis>(tensor.layer_basis));
  out.mutable_layer_ids()->Add(tensor.layer_ids.begin(), tensor.layer_ids.end());
}

void SetBlocks(absl::Span<const BlockHeader> blocks, v1::EncodedBlocks& out) {
  out.mutable_blocks()->Reserve(static_cast<int>(blocks.size()));
  for (const BlockHeader& block : blocks) {
    v1::BlockHeader& one = *out.add_blocks();
    one.set_row_start(block.rows.begin);
    one.set_rows(block.rows.size());
    one.set_codec(static_cast<v1::Codec>(block.codec));
    one.mutable_plane_crc32c()->Add(block.plane_crc32c.begin(), block.plane_crc32c.end());
  }
}

void SetHeader(const AppendHeader& header, v1::AppendHeader& out) {
  out.set_append_id(header.append_id);
  out.set_sample(header.sample);
  out.set_producer(static_cast<v1::Producer>(header.producer));
  out.set_row_start(header.rows.begin);
  out.set_rows(header.rows.size());
  for (const RowRange range : header.unrecorded) *out.add_unrecorded() = ToProto(range);
  out.set_revision(header.revision);
  out.set_restart_nonce(header.restart_nonce);
  if (header.group) out.set_group(*header.group);
  if (header.weight_version != kUnknownWeightVersion) out.set_weight_version(header.weight_version);
  out.set_weight_label(header.weight_label);
  out.set_token_ids(header.token_ids);
  if (header.token_check_start) out.set_token_check_start(*header.token_check_start);
  if (header.seal_num_tokens) out.set_seal_num_tokens(*header.seal_num_tokens);
  if (header.prefix) {
    out.mutable_prefix()->set_sample(header.prefix->sample);
    out.mutable_prefix()->set_rows(header.prefix->rows);
    out.mutable_prefix()->set_revision(header.prefix->revision);
  }
  out.set_engine(header.engine);
  out.set_resend_key(header.resend_key);
  if (const auto* tensor = std::get_if<TensorDescription>(&header.payload_kind))
    SetTensor(*tensor, *out.mutable_tensor());
  if (const auto* blocks = std::get_if<std::vector<BlockHeader>>(&header.payload_kind)) {
    SetBlocks(*blocks, *out.mutable_blocks());
  }
}

absl::StatusOr<TensorDescription> TensorOf(const v1::TensorPayload& from, const FieldPath& path) {
  MessageFields f(path);
  TensorDescription tensor;
  tensor.encoding = f.Known<Encoding>("encoding", from.encoding(), Encoding::kBase64Npy, std::nullopt);
  tensor.compression = f.Known<Compression>("compression", from.compression(), Compression::kZstd, Compression::kNone);
  tensor.raw_size = f.Count("raw_size", from.raw_size());
  tensor.dtype = f.Known<DType>("dtype", from.dtype(), DType::kI64, DType::kUnspecified, Reason::kDType);
  tensor.layer_basis =
      f.Known<LayerBasis>("layer_basis", from.layer_basis(), LayerBasis::kExplicit, LayerBasis::kUnspecified);
  if (from.shape_size() > kMaxTensorRank) {
    f.FailField("shape", absl::StrCat("must have at most ", kMaxTensorRank, " axes"), Reason::kShape);
  } else {
    for (const uint64_t size : from.shape()) tensor.shape.push_back(f.Count("shape", size));
  }
  if (from.layer_ids_size() > kMaxLayers) {
    f.FailField("layer_ids", absl::StrCat("must have at most ", kMaxLayers, " layers"), Reason::kShape);
  } else {
    for (const uint32_t id : from.layer_ids()) {
      tensor.layer_ids.push_back(static_cast<int32_t>(f.Count("layer_ids", id, kMaxLayers - 1)));
    }
  }
  if (!f.status().ok()) return f.status();
  return tensor;
}

absl::StatusOr<std::vector<BlockHeader>> BlocksOf(const v1::EncodedBlocks& from, const FieldPath& path) {
  std::vector<BlockHeader> blocks;
  blocks.reserve(from.blocks_size());
  for (const v1::BlockHeader& block : from.blocks()) {
    const FieldPath at = path.Child("blocks", blocks.size());
    MessageFields f(at);
    const int64_t start = f.Count("row_start", block.row_start(), kMaxRows);
    const int64_t rows = f.Count("rows", block.rows(), kMaxBlockRows, 1);
    const Codec codec = f.ReadCodec("codec", block.codec());
    if (!f.status().ok()) return f.status();
    blocks.push_back(
        {RowRange::OfSize(start, rows), codec, {block.plane_crc32c().begin(), block.plane_crc32c().end()}});
  }
  return blocks;
}

void CheckRows(const AppendHeader& header, MessageFields& f) {
  if (header.rows.begin < 0 || header.rows.end < header.rows.begin || header.rows.end > kMaxRows) {
    return f.FailField("rows", absl::StrCat(ToString(header.rows), " is not inside [0, ", kMaxRows, ")"));
  }
  f.CheckRanges("unrecorded", header.unrecorded, header.rows);
  const auto token_bytes = static_cast<int64_t>(header.token_ids.size());
  if (token_bytes != 0 && token_bytes != 4 * header.rows.size()) {
    f.FailField("token_ids",
                absl::StrCat("must have 4 bytes for each of ", header.rows.size(), " rows, got ", token_bytes),
                Reason::kLength);
  }
  if (header.rows.begin == 0 && header.token_check_start.value_or(0) != 0) {
    f.FailField("token_check_start", "must be 0 if the append starts at row 0");
  }
}

void CheckPrefix(const AppendHeader& header, MessageFields& f) {
  const PrefixReference& prefix = *header.prefix;
  f.Fail(CheckId(prefix.sample, "append.prefix.sample"));
  if (prefix.sample == header.sample) f.FailField("prefix.sample", "must be another sample than append.sample");
  if (prefix.rows < 0 || prefix.rows > kMaxRows) {
    f.FailField("prefix.rows", absl::StrCat(prefix.rows, " is not in [0, ", kMaxRows, "]"));
  }
  if (prefix.revision < 0) f.FailField("prefix.revision", "must be at least 0");
}

void CheckHeader(const AppendHeader& header, MessageFields& f) {
  f.Fail(CheckId(header.sample, "append.sample"));
  CheckRows(header, f);
  f.Text("weight_label", header.weight_label);
  f.Text("engine", header.engine);
  if (header.prefix) CheckPrefix(header, f);
  if (header.weight_version < kUnknownWeightVersion) {
    f.FailField("weight_version", absl::StrCat("must be at least -1, got ", header.weight_version));
  }
  if (header.revision < 0) f.FailField("revision", absl::StrCat("must be at least 0, got ", header.revision));
  // The largest number is excluded, because no half-open range of groups can contain it.
  if (header.group == kMaxInt64) f.FailField("group", "must be below 2^63 - 1");
  if (header.seal_num_tokens && (*header.seal_num_tokens < 1 || *header.seal_num_tokens > kMaxTokens)) {
    f.FailField("seal_num_tokens", absl::StrCat(*header.seal_num_tokens, " is not in [1, ", kMaxTokens, "]"),
                Reason::kRowCount);
  }
}

template <typename T, typename Out>
void Take(MessageFields& f, absl::StatusOr<T> parsed, Out& out) {
  f.Fail(parsed.status());
  if (parsed.ok()) out = *std::move(parsed);
}

absl::StatusOr<AppendHeader> HeaderOf(v1::AppendHeader& from, const FieldPath& path) {
  MessageFields f(path);
  AppendHeader header;
  header.append_id = from.append_id();
  header.sample = std::move(*from.mutable_sample());
  header.producer = f.ReadProducer("producer", from.producer());
  header.rows =
      RowRange::OfSize(f.Count("row_start", from.row_start(), kMaxRows), f.Count("rows", from.rows(), kMaxRows));
  header.unrecorded = f.Ranges("unrecorded", from.unrecorded());
  header.revision = f.Count("revision", from.revision());
  header.restart_nonce = from.restart_nonce();
  if (from.has_group()) header.group = from.group();
  if (from.has_weight_version()) header.weight_version = from.weight_version();
  header.weight_label = std::move(*from.mutable_weight_label());
  header.token_ids = std::move(*from.mutable_token_ids());
  if (from.has_token_check_start()) header.token_check_start = from.token_check_start();
  if (from.has_seal_num_tokens()) header.seal_num_tokens = f.Count("seal_num_tokens", from.seal_num_tokens());
  if (from.has_prefix()) {
    header.prefix = PrefixReference{from.prefix().sample(), f.Count("prefix.rows", from.prefix().rows(), kMaxRows),
                                    f.Count("prefix.revision", from.prefix().revision())};
  }
  header.engine = std::move(*from.mutable_engine());
  header.resend_key = from.resend_key();
  if (from.has_tensor()) Take(f, TensorOf(from.tensor(), path.Child("tensor")), header.payload_kind);
  if (from.has_blocks()) Take(f, BlocksOf(from.blocks(), path.Child("blocks")), header.payload_kind);
  if (f.status().ok()) CheckHeader(header, f);
  if (!f.status().ok()) return f.status();
  return header;
}

// Limits the lengths of lists before protobuf allocates memory for them.
absl::Status CheckCounts(absl::string_view header) {
  if (header.size() <= 2 * kMaxUnrecordedRanges) return absl::OkStatus();  // Each range takes at least two bytes.
  if (CountFields(header, {3, 6}).back() > kMaxUnrecordedRanges) {
    return Invalid(Reason::kLength, "append.unrecorded",
                   absl::StrCat("must have at most ", kMaxUnrecordedRanges, " ranges"));
  }
  if (CountFields(header, {3, 21, 1}).back() > kMaxBlocks) {
    return Invalid(Reason::kLength, "append.blocks.blocks", absl::StrCat("must have at most ", kMaxBlocks, " blocks"));
  }
  return absl::OkStatus();
}

AppendAck AckOf(const v1::AppendAck& from, MessageFields& f) {
  AppendAck ack{.append_id = from.append_id(),
                .sample = from.sample(),
                .committed_rows = f.Count("committed_rows", from.committed_rows()),
                .revision = f.Count("revision", from.revision()),
                .content_id = from.content_id(),
                .sealed = from.sealed(),
                .trimmed_rows = f.Count("trimmed_rows", from.trimmed_rows()),
                .conflicting_rows = f.Count("conflicting_rows", from.conflicting_rows()),
                .late_rows = f.Count("late_rows", from.late_rows()),
                .unrecorded_rows = f.Count("unrecorded_rows", from.unrecorded_rows()),
                .unverified_rows = f.Count("unverified_rows", from.unverified_rows())};
  if (from.has_error()) ack.error = DecodeStreamStatus(from.error().SerializeAsString());
  return ack;
}

void SetAck(const AppendAck& ack, v1::AppendAck& out) {
  out.set_append_id(ack.append_id);
  out.set_sample(ack.sample);
  out.set_committed_rows(ack.committed_rows);
  out.set_revision(ack.revision);
  out.set_content_id(ack.content_id);
  out.set_sealed(ack.sealed);
  out.set_trimmed_rows(ack.trimmed_rows);
  out.set_conflicting_rows(ack.conflicting_rows);
  out.set_late_rows(ack.late_rows);
  out.set_unrecorded_rows(ack.unrecorded_rows);
  out.set_unverified_rows(ack.unverified_rows);
  if (!ack.error.ok()) out.mutable_error()->ParseFromString(EncodeStreamStatus(ack.error));
}

template <typename Message>
bool ParseChain(const ByteChain& bytes, Message& message) {
  Buffer scratch;
  const absl::Span<const uint8_t> flat = bytes.Flatten(scratch);
  return message.ParseFromArray(flat.data(), static_cast<int>(flat.size()));
}

}  // namespace

std::string EncodeAppendRequest(const AppendRequest& request, size_t payload_size) {
  StackArena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<v1::AppendRequest>(arena.get());
  message.set_run(request.run);
  message.set_want_bytes(request.want_bytes);
  if (request.append) SetHeader(*request.append, *message.mutable_append());
  std::string bytes = message.SerializeAsString();
  AppendPayloadPrefix(kAppendPayloadField, payload_size, bytes);
  return bytes;
}

absl::StatusOr<AppendRequest> ParseAppendRequest(const ByteChain& bytes) {
  RR_ASSIGN_OR_RETURN(SplitMessage split, SplitPayload(bytes, kAppendPayloadField));
  RR_RETURN_IF_ERROR(CheckCounts(split.header));
  StackArena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<v1::AppendRequest>(arena.get());
  if (!message.ParseFromString(split.header)) return MalformedMessage();
  MessageFields f;
  AppendRequest request{.run = message.run(), .want_bytes = message.want_bytes(), .payload = std::move(split.payload)};
  if (!request.run.empty()) f.Fail(CheckId(request.run, "run"));
  if (message.has_append()) Take(f, HeaderOf(*message.mutable_append(), {.name = "append"}), request.append);
  if (!message.has_append() && request.payload.size() != 0)
    f.FailField("payload", "must be empty if the message has no append");
  if (!f.status().ok()) return f.status();
  return request;
}

absl::Status CheckAppendHeader(const AppendHeader& header) {
  MessageFields f({.name = "append"});
  CheckHeader(header, f);
  return f.status();
}

std::optional<RejectedAppend> ParseRejectedAppend(const ByteChain& bytes) {
  const absl::StatusOr<SplitMessage> split = SplitPayload(bytes, kAppendPayloadField);
  if (!split.ok()) return std::nullopt;
  StackArena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<v1::AppendRequest>(arena.get());
  if (!CheckCounts(split->header).ok() || !message.ParseFromString(split->header)) return std::nullopt;
  if (!message.has_append() || (!message.run().empty() && !CheckId(message.run(), "run").ok())) return std::nullopt;
  RejectedAppend rejected{.run = message.run(),
                          .want_bytes = message.want_bytes(),
                          .append_id = message.append().append_id(),
                          .payload_bytes = split->payload.size()};
  if (CheckId(message.append().sample(), "append.sample").ok()) rejected.sample = message.append().sample();
  return rejected;
}

std::string EncodeAppendAck(const AppendAck& ack) {
  v1::AppendAck message;
  SetAck(ack, message);
  return message.SerializeAsString();
}

absl::StatusOr<AppendAck> ParseAppendAck(const ByteChain& bytes) {
  v1::AppendAck message;
  if (!ParseChain(bytes, message)) return MalformedMessage();
  MessageFields f;
  AppendAck ack = AckOf(message, f);
  if (!f.status().ok()) return f.status();
  return ack;
}

std::string EncodeAppendResponse(const AppendResponse& response) {
  v1::AppendResponse message;
  if (response.credit) {
    message.mutable_credit()->set_granted_bytes(response.credit->granted_bytes);
    if (!response.credit->rejection.ok()) {
      message.mutable_credit()->mutable_rejection()->ParseFromString(EncodeStreamStatus(response.credit->rejection));
    }
  }
  if (response.ack) SetAck(*response.ack, *message.mutable_ack());
  return message.SerializeAsString();
}

absl::StatusOr<AppendResponse> ParseAppendResponse(const ByteChain& bytes) {
  v1::AppendResponse message;
  if (!ParseChain(bytes, message)) return MalformedMessage();
  AppendResponse response;
  if (message.has_credit()) {
    response.credit = Credit{.granted_bytes = message.credit().granted_bytes()};
    if (message.credit().has_rejection()) {
      response.credit->rejection = DecodeStreamStatus(message.credit().rejection().SerializeAsString());
    }
  }
  MessageFields f({.name = "ack"});
  if (message.has_ack()) response.ack = AckOf(message.ack(), f);
  if (!f.status().ok()) return f.status();
  return response;
}

}  // namespace wire
}  // namespace routing_replay
