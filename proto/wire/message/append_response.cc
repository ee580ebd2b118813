// The server's half of append_message.h: credit and acks.
#include "proto/wire/message/append_message.h"
#include "proto/wire/message/message_reader.h"

namespace routing_replay {
inline namespace wire {
namespace {

std::string EncodeCredit(const Credit& credit) {
  ProtobufWriter w;
  w.Varint(1, credit.granted_bytes);
  if (!credit.refusal.ok()) w.BytesAlways(2, EncodeStreamStatus(credit.refusal));
  return w.Take();
}

absl::StatusOr<Credit> ParseCredit(absl::string_view bytes, const FieldPath& path) {
  Credit credit;
  MessageReader r(bytes, path);
  while (r.Next()) {
    if (r.field() == 1) credit.granted_bytes = r.Unsigned("granted_bytes");
    if (r.field() == 2) credit.refusal = DecodeStreamStatus(r.Bytes("refusal"));
  }
  if (!r.status().ok()) return r.status();
  return credit;
}

// The field of the ack that holds a count, or null.
int64_t* CountOf(AppendAck& ack, int field) {
  switch (field) {
    case 3:
      return &ack.committed_rows;
    case 4:
      return &ack.revision;
    case 7:
      return &ack.trimmed_rows;
    case 8:
      return &ack.conflicting_rows;
    case 9:
      return &ack.late_rows;
    case 10:
      return &ack.unrecorded_rows;
    case 11:
      return &ack.unverified_rows;
    default:
      return nullptr;
  }
}

absl::StatusOr<AppendAck> ParseAck(absl::string_view bytes, const FieldPath& path) {
  AppendAck ack;
  MessageReader r(bytes, path);
  while (r.Next()) {
    if (int64_t* count = CountOf(ack, r.field())) *count = r.Count("counter");
    switch (r.field()) {
      case 1:
        ack.append_id = r.Unsigned("append_id");
        break;
      case 2:
        ack.sample = std::string(r.Bytes("sample"));
        break;
      case 5:
        ack.content_id = r.Fixed64("content_id");
        break;
      case 6:
        ack.sealed = r.Unsigned("sealed") != 0;
        break;
      case 15:
        ack.error = DecodeStreamStatus(r.Bytes("error"));
        break;
      default:
        break;
    }
  }
  if (!r.status().ok()) return r.status();
  return ack;
}

}  // namespace

std::string EncodeAppendAck(const AppendAck& ack) {
  ProtobufWriter w;
  w.Varint(1, ack.append_id);
  w.Bytes(2, ack.sample);
  w.Int(3, ack.committed_rows);
  w.Int(4, ack.revision);
  w.Fixed64(5, ack.content_id);
  w.Varint(6, ack.sealed ? 1 : 0);
  w.Int(7, ack.trimmed_rows);
  w.Int(8, ack.conflicting_rows);
  w.Int(9, ack.late_rows);
  w.Int(10, ack.unrecorded_rows);
  w.Int(11, ack.unverified_rows);
  if (!ack.error.ok()) w.BytesAlways(15, EncodeStreamStatus(ack.error));
  return w.Take();
}

absl::StatusOr<AppendAck> ParseAppendAck(const ByteChain& bytes) {
  Buffer scratch;
  const absl::Span<const uint8_t> flat = bytes.Flatten(scratch);
  return ParseAck({reinterpret_cast<const char*>(flat.data()), flat.size()}, FieldPath{});
}

std::string EncodeAppendResponse(const AppendResponse& response) {
  ProtobufWriter w;
  if (response.credit) w.BytesAlways(1, EncodeCredit(*response.credit));
  if (response.ack) w.BytesAlways(2, EncodeAppendAck(*response.ack));
  return w.Take();
}

absl::StatusOr<AppendResponse> ParseAppendResponse(const ByteChain& bytes) {
  Buffer scratch;
  const absl::Span<const uint8_t> flat = bytes.Flatten(scratch);
  AppendResponse response;
  MessageReader r({reinterpret_cast<const char*>(flat.data()), flat.size()}, FieldPath{});
  while (r.Next()) {
    if (r.field() == 1) {
      absl::StatusOr<Credit> credit = ParseCredit(r.Bytes("credit"), r.path().Child("credit"));
      if (!credit.ok()) return credit.status();
      response.credit = *std::move(credit);
    } else if (r.field() == 2) {
      absl::StatusOr<AppendAck> ack = ParseAck(r.Bytes("ack"), r.path().Child("ack"));
      if (!ack.ok()) return ack.status();
      response.ack = *std::move(ack);
    }
  }
  if (!r.status().ok()) return r.status();
  return response;
}

}  // namespace wire
}  // namespace routing_replay
