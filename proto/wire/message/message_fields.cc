#include "proto/wire/message/message_fields.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

namespace routing_replay {
inline namespace wire {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Of the fields from here to the stream's limit; whether all could be read.
bool CountHere(CodedInputStream& stream, absl::Span<const int> path, size_t* counts) {
  while (const uint32_t tag = stream.ReadTag()) {
    const bool on_path = WireFormatLite::GetTagFieldNumber(tag) == path.front();
    if (on_path) ++counts[0];
    uint32_t size = 0;
    const bool descend =
        on_path && path.size() > 1 && WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (!descend) {
      if (!WireFormatLite::SkipField(&stream, tag)) return false;
    } else {
      if (!stream.ReadVarint32(&size)) return false;
      const auto limit = stream.PushLimit(static_cast<int>(size));
      if (!CountHere(stream, path.subspan(1), counts + 1) || stream.BytesUntilLimit() != 0) return false;
      stream.PopLimit(limit);
    }
  }
  return true;
}

}  // namespace

std::string FieldPath::ToString() const {
  std::string out = parent == nullptr ? "" : parent->ToString();
  if (name[0] != '\0') absl::StrAppend(&out, out.empty() ? "" : ".", name);
  if (index) absl::StrAppend(&out, "[", *index, "]");
  return out;
}

absl::Status FieldError(const FieldPath& path, absl::string_view message, Reason reason) {
  return Invalid(reason, path.ToString(), message);
}

absl::Status MalformedMessage() {
  return MakeError(absl::StatusCode::kInvalidArgument, "malformed message", {.reason = Reason::kEncoding});
}

void CountFields(absl::string_view message, absl::Span<const int> path, size_t* counts) {
  CodedInputStream stream(reinterpret_cast<const uint8_t*>(message.data()), static_cast<int>(message.size()));
  CountHere(stream, path, counts);
}

int64_t MessageFields::Count(const char* name, uint64_t value, int64_t maximum, int64_t minimum) {
  if (value <= static_cast<uint64_t>(maximum) && value >= static_cast<uint64_t>(minimum)) {
    return static_cast<int64_t>(value);
  }
  FailField(name, absl::StrCat(value, " is not in [", minimum, ", ", maximum, "]"));
  return minimum;
}

Producer MessageFields::ReadProducer(const char* name, v1::Producer value) {
  return Known<Producer>(name, value, Producer::kTrainer, Producer::kRollout);
}

Codec MessageFields::ReadCodec(const char* name, v1::Codec value) {
  if (value == v1::CODEC_ZSTD) {
    const std::string field = path_.Child(name).ToString();
    Fail(MakeError(absl::StatusCode::kUnimplemented,
                   absl::StrCat(field, ": codec ZSTD is reserved and not implemented"),
                   {.reason = Reason::kField, .field = field}));
    return Codec::kRaw;
  }
  return Known<Codec>(name, value, Codec::kPacked, std::nullopt);
}

const std::string& MessageFields::Text(const char* name, const std::string& value, size_t max_bytes) {
  if (value.size() > max_bytes)
    FailField(name, absl::StrCat("must have at most ", max_bytes, " bytes, got ", value.size()));
  return value;
}

RowRange MessageFields::Range(const char* name, std::optional<size_t> index, const v1::RowRange& value) {
  const FieldPath path{&path_, name, index};
  if (value.end() > static_cast<uint64_t>(kMaxRows)) {
    Fail(FieldError(path.Child("end"), absl::StrCat(value.end(), " is not in [0, ", kMaxRows, "]")));
    return {};
  }
  if (value.begin() > value.end()) {
    Fail(FieldError(path.Child("end"), "below begin"));
    return {};
  }
  return {static_cast<int64_t>(value.begin()), static_cast<int64_t>(value.end())};
}

}  // namespace wire
}  // namespace routing_replay
