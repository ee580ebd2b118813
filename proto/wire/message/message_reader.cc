#include "proto/wire/message/message_reader.h"

#include "absl/strings/str_cat.h"

namespace routing_replay {
inline namespace wire {

std::string FieldPath::ToString() const {
  std::string out = parent == nullptr ? "" : parent->ToString();
  if (name[0] != '\0') absl::StrAppend(&out, out.empty() ? "" : ".", name);
  if (index) absl::StrAppend(&out, "[", *index, "]");
  return out;
}

absl::Status FieldError(const FieldPath& path, absl::string_view message, Reason reason) {
  const std::string field = path.ToString();
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat(field, field.empty() ? "" : ": ", message),
                   {.reason = reason, .field = field});
}

absl::Status ReservedError(const FieldPath& path, absl::string_view message) {
  const std::string field = path.ToString();
  return MakeError(absl::StatusCode::kUnimplemented, absl::StrCat(field, ": ", message),
                   {.reason = Reason::kField, .field = field});
}

absl::Status CheckNormalField(absl::Span<const RowRange> ranges, RowRange bounds, const FieldPath& path) {
  const absl::Status status = CheckNormal(ranges, bounds);
  return status.ok() ? status : FieldError(path, status.message());
}

absl::Status MessageReader::status() const {
  if (!status_.ok() || reader_.ok()) return status_;
  return FieldError(path_, "malformed message", Reason::kEncoding);
}

int64_t MessageReader::Count(const char* name, int64_t maximum, int64_t minimum) {
  const uint64_t value = Unsigned(name);
  if (!status_.ok()) return 0;
  if (value > static_cast<uint64_t>(maximum) || value < static_cast<uint64_t>(minimum)) {
    FailField(name, absl::StrCat(value, " is not in [", minimum, ", ", maximum, "]"));
    return 0;
  }
  return static_cast<int64_t>(value);
}

uint64_t MessageReader::Unsigned(const char* name) { return Checked(name, reader_.varint()); }
int64_t MessageReader::Signed(const char* name) { return Checked(name, reader_.int64()); }
uint32_t MessageReader::Fixed32(const char* name) { return Checked(name, reader_.fixed32()); }
uint64_t MessageReader::Fixed64(const char* name) { return Checked(name, reader_.fixed64()); }
absl::string_view MessageReader::Bytes(const char* name) { return Checked(name, reader_.bytes()); }

std::string MessageReader::Text(const char* name, size_t max_bytes) {
  const absl::string_view text = Bytes(name);
  if (text.size() > max_bytes) {
    FailField(name, absl::StrCat(text.size(), " bytes; at most ", max_bytes));
    return {};
  }
  if (!IsUtf8(text)) FailField(name, "not UTF-8");
  return std::string(text);
}

Producer MessageReader::ReadProducer(const char* name) {
  const uint64_t value = Unsigned(name);
  if (value > static_cast<uint64_t>(Producer::kTrainer)) FailField(name, absl::StrCat("unknown producer ", value));
  return value == static_cast<uint64_t>(Producer::kTrainer) ? Producer::kTrainer : Producer::kRollout;
}

Codec MessageReader::ReadCodec(const char* name) {
  constexpr uint64_t kZstd = 3;
  const uint64_t value = Unsigned(name);
  if (value == kZstd) Fail(ReservedError(path_.Child(name), "codec ZSTD is reserved and not implemented"));
  const bool known = value == static_cast<uint64_t>(Codec::kRaw) || value == static_cast<uint64_t>(Codec::kPacked);
  if (known) return static_cast<Codec>(value);
  FailField(name, absl::StrCat("unknown codec ", value));
  return Codec::kRaw;
}

void MessageReader::PackedFixed32(const char* name, std::vector<uint32_t>& out) {
  reader_.RepeatedFixed32([&](uint32_t value) { out.push_back(value); });
  Checked(name, 0);
}

absl::Status ParseRowRange(absl::string_view bytes, const FieldPath& path, RowRange& out) {
  MessageReader r(bytes, path);
  while (r.Next()) {
    if (r.field() == 1) out.begin = r.Count("begin", kMaxRows);
    if (r.field() == 2) out.end = r.Count("end", kMaxRows);
  }
  if (out.begin > out.end) r.FailField("end", "below begin");
  return r.status();
}

std::string EncodeRowRange(RowRange range) {
  ProtobufWriter w;
  w.Int(1, range.begin);
  w.Int(2, range.end);
  return w.Take();
}

bool IsUtf8(absl::string_view text) {
  // Unicode 15, table 3-7: the second byte's range depends on the first, later ones are 80..BF.
  for (size_t i = 0; i < text.size();) {
    const auto at = [&](size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const unsigned first = at(i);
    const size_t length = first < 0x80 ? 1 : first >= 0xC2 && first < 0xE0 ? 2 : first >= 0xE0 && first < 0xF0 ? 3 : 4;
    if ((first >= 0x80 && first < 0xC2) || first > 0xF4) return false;
    const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (length > 1 && (at(i + 1) < low || at(i + 1) > high)) return false;
    for (size_t k = i + 2; k < i + length; ++k) {
      if (at(k) < 0x80 || at(k) > 0xBF) return false;
    }
    i += length;
  }
  return true;
}

}  // namespace wire
}  // namespace routing_replay
