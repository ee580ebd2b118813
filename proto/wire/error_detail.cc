#include "routing_replay/wire/error_detail.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace routing_replay {
namespace {

constexpr char kTypeUrl[] = "type.googleapis.com/routing_replay.v1.ErrorDetail";

// Writes the part of protobuf's encoding that a Status needs: numbers, bytes and messages. It is written by hand, so
// that code that only creates and reads errors, such as the kernel library, need not link protobuf.
class FieldWriter {
 public:
  // proto3 leaves out values that are 0 or empty, except in optional fields.
  void Int(int field, int64_t value) {
    if (value != 0) IntAlways(field, value);
  }
  void IntAlways(int field, int64_t value) {
    Varint(static_cast<uint64_t>(field) << 3);
    Varint(static_cast<uint64_t>(value));
  }
  void Bytes(int field, absl::string_view value) {
    if (!value.empty()) BytesAlways(field, value);
  }
  void BytesAlways(int field, absl::string_view value) {
    Varint(static_cast<uint64_t>(field) << 3 | 2);
    Varint(value.size());
    absl::StrAppend(&bytes_, value);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }

  std::string bytes_;
};

// Walks the fields of a message: each Next() moves to a field, whose value is number() for a varint, otherwise bytes().
// Ends at malformed bytes.
class FieldReader {
 public:
  explicit FieldReader(absl::string_view bytes) : rest_(bytes) {}

  bool Next() {
    uint64_t tag = 0;
    if (!ok_ || rest_.empty()) return false;
    ok_ = Varint(tag) && tag >> 3 != 0;
    if (!ok_) return false;
    field_ = static_cast<int>(tag >> 3);
    number_ = 0;
    bytes_ = {};
    switch (tag & 7) {
      case 0:
        return ok_ = Varint(number_);
      case 1:
        return ok_ = Skip(8);
      case 2: {
        uint64_t size = 0;
        return ok_ = Varint(size) && Skip(size);
      }
      case 5:
        return ok_ = Skip(4);
      default:
        return ok_ = false;
    }
  }
  bool ok() const { return ok_; }
  int field() const { return field_; }
  int64_t number() const { return static_cast<int64_t>(number_); }
  absl::string_view bytes() const { return bytes_; }

 private:
  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool Skip(uint64_t size) {
    if (size > rest_.size()) return false;
    bytes_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  absl::string_view rest_;
  bool ok_ = true;
  int field_ = 0;
  uint64_t number_ = 0;
  absl::string_view bytes_;
};

std::string EncodeDetail(const ErrorDetail& d) {
  FieldWriter w;
  w.Int(1, static_cast<int64_t>(d.reason));
  w.Bytes(2, d.field);
  w.Bytes(3, d.sample);
  if (d.row) w.IntAlways(4, *d.row);
  if (d.layer) w.IntAlways(5, *d.layer);
  if (d.committed_rows) w.IntAlways(6, *d.committed_rows);
  if (d.revision) w.IntAlways(7, *d.revision);
  if (d.first_differing_block) w.IntAlways(8, *d.first_differing_block);
  if (d.retry_after_ms) w.IntAlways(10, *d.retry_after_ms);
  return w.Take();
}

std::optional<ErrorDetail> DecodeDetail(absl::string_view bytes) {
  ErrorDetail d;
  FieldReader r(bytes);
  while (r.Next()) {
    if (r.field() == 1) d.reason = static_cast<Reason>(r.number());
    if (r.field() == 2) d.field = std::string(r.bytes());
    if (r.field() == 3) d.sample = std::string(r.bytes());
    if (r.field() == 4) d.row = r.number();
    if (r.field() == 5) d.layer = static_cast<int32_t>(r.number());
    if (r.field() == 6) d.committed_rows = r.number();
    if (r.field() == 7) d.revision = r.number();
    if (r.field() == 8) d.first_differing_block = r.number();
    if (r.field() == 10) d.retry_after_ms = static_cast<int32_t>(r.number());
  }
  if (!r.ok()) return std::nullopt;
  return d;
}

}  // namespace

const char* ReasonName(Reason reason) {
  static constexpr std::pair<Reason, const char*> kNames[] = {{Reason::kUnspecified, "REASON_UNSPECIFIED"},
                                                              {Reason::kField, "FIELD"},
                                                              {Reason::kEncoding, "ENCODING"},
                                                              {Reason::kDType, "DTYPE"},
                                                              {Reason::kShape, "SHAPE"},
                                                              {Reason::kLength, "LENGTH"},
                                                              {Reason::kIdRange, "ID_RANGE"},
                                                              {Reason::kPartialRow, "PARTIAL_ROW"},
                                                              {Reason::kDuplicateId, "DUPLICATE_ID"},
                                                              {Reason::kAllZeroLayer, "ALL_ZERO_LAYER"},
                                                              {Reason::kChecksum, "CHECKSUM"},
                                                              {Reason::kRowCount, "ROW_COUNT"},
                                                              {Reason::kGap, "GAP"},
                                                              {Reason::kOldRevision, "OLD_REVISION"},
                                                              {Reason::kSealed, "SEALED"},
                                                              {Reason::kNotCommitted, "NOT_COMMITTED"},
                                                              {Reason::kGeometryMismatch, "GEOMETRY_MISMATCH"},
                                                              {Reason::kVersionMismatch, "VERSION_MISMATCH"},
                                                              {Reason::kOtherTokens, "OTHER_TOKENS"},
                                                              {Reason::kConflictingRows, "CONFLICTING_ROWS"},
                                                              {Reason::kHandleCollision, "HANDLE_COLLISION"},
                                                              {Reason::kOverBudget, "OVER_BUDGET"},
                                                              {Reason::kNoRun, "NO_RUN"},
                                                              {Reason::kNoSample, "NO_SAMPLE"},
                                                              {Reason::kDraining, "DRAINING"}};
  for (const auto& [known, name] : kNames) {
    if (reason == known) return name;
  }
  return "UNKNOWN";
}

absl::Status MakeError(absl::StatusCode code, absl::string_view message, const ErrorDetail& detail) {
  absl::Status status(code, message);
  status.SetPayload(kTypeUrl, absl::Cord(EncodeDetail(detail)));
  return status;
}

absl::Status Invalid(const ErrorDetail& detail, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(detail.field, ": ", what), detail);
}

absl::Status Invalid(Reason reason, absl::string_view field, absl::string_view what) {
  return Invalid({.reason = reason, .field = std::string(field)}, what);
}

absl::Status Invalid(absl::string_view field, absl::string_view what) { return Invalid(Reason::kField, field, what); }

std::optional<ErrorDetail> GetErrorDetail(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kTypeUrl);
  if (!payload) return std::nullopt;
  return DecodeDetail(std::string(*payload));
}

absl::Status WithSample(const absl::Status& status, absl::string_view sample) {
  if (status.ok()) return status;
  ErrorDetail detail = GetErrorDetail(status).value_or(ErrorDetail{});
  detail.sample = std::string(sample);
  return MakeError(status.code(), status.message(), detail);
}

std::string EncodeRpcStatus(const absl::Status& status) {
  FieldWriter w;
  w.Int(1, static_cast<int64_t>(status.code()));
  w.Bytes(2, status.message());
  if (const absl::optional<absl::Cord> payload = status.GetPayload(kTypeUrl)) {
    FieldWriter any;
    any.Bytes(1, kTypeUrl);
    any.Bytes(2, std::string(*payload));
    w.BytesAlways(3, any.Take());
  }
  return w.Take();
}

absl::Status DecodeRpcStatus(absl::StatusCode code, absl::string_view message, absl::string_view rpc_status_bytes) {
  // This is gRPC's status for calls that were open when the server stopped. A caller that cancels its own call ignores
  // the status.
  if (code == absl::StatusCode::kCancelled && rpc_status_bytes.empty()) {
    return absl::UnavailableError("the server ended the call without an answer");
  }
  absl::Status status(code, message);
  FieldReader r(rpc_status_bytes);
  while (r.Next()) {
    if (r.field() != 3) continue;
    absl::string_view type_url, value;
    FieldReader any(r.bytes());
    while (any.Next()) {
      if (any.field() == 1) type_url = any.bytes();
      if (any.field() == 2) value = any.bytes();
    }
    if (any.ok() && type_url == kTypeUrl && DecodeDetail(value)) status.SetPayload(kTypeUrl, absl::Cord(value));
  }
  return status;
}

std::string EncodeStreamStatus(const absl::Status& status) {
  FieldWriter w;
  w.Int(1, static_cast<int64_t>(status.code()));
  w.Bytes(2, status.message());
  if (const absl::optional<absl::Cord> payload = status.GetPayload(kTypeUrl)) w.BytesAlways(3, std::string(*payload));
  return w.Take();
}

absl::Status DecodeStreamStatus(absl::string_view bytes) {
  int64_t code = 0;
  absl::string_view message;
  std::optional<absl::string_view> detail;
  FieldReader r(bytes);
  while (r.Next()) {
    if (r.field() == 1) code = r.number();
    if (r.field() == 2) message = r.bytes();
    if (r.field() == 3) detail = r.bytes();
  }
  if (!r.ok()) return absl::InternalError("malformed Status message");
  constexpr auto kLastCode = static_cast<int64_t>(absl::StatusCode::kUnauthenticated);
  const bool known = code >= 0 && code <= kLastCode;
  absl::Status status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, message);
  if (detail && DecodeDetail(*detail)) status.SetPayload(kTypeUrl, absl::Cord(*detail));
  return status;
}

}  // namespace routing_replay
