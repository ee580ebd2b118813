// ProtobufReader with checks: every number that is read is inside its limits, and an error names the field by its path.
#ifndef PROTO_WIRE_MESSAGE_MESSAGE_READER_H_
#define PROTO_WIRE_MESSAGE_MESSAGE_READER_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/wire/message/protobuf_bytes.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample_id.h"

namespace routing_replay {
inline namespace wire {

inline constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMaxTokens = kMaxRows + 1;
inline constexpr size_t kMaxLabelBytes = 128;

// Where in a message a field stands: "append.blocks[3].rows". Made into text only when there is an error to report.
struct FieldPath {
  const FieldPath* parent = nullptr;
  const char* name = "";  // Empty: the message itself.
  std::optional<size_t> index;

  FieldPath Child(const char* child) const { return {this, child, std::nullopt}; }
  FieldPath Child(const char* child, size_t i) const { return {this, child, i}; }
  std::string ToString() const;
};

// INVALID_ARGUMENT (kField unless another reason is given) "PATH: MESSAGE".
absl::Status FieldError(const FieldPath& path, absl::string_view message, Reason reason = Reason::kField);
// UNIMPLEMENTED for a value whose number is reserved for a later version.
absl::Status ReservedError(const FieldPath& path, absl::string_view message);
// CheckNormal with the path in the error.
absl::Status CheckNormalField(absl::Span<const RowRange> ranges, RowRange bounds, const FieldPath& path);

// Walks one message like ProtobufReader. The first error ends the walk and is what status() gives; accessors after it
// give zeros.
class MessageReader {
 public:
  MessageReader(absl::string_view bytes, const FieldPath& path) : reader_(bytes), path_(path) {}

  bool Next() { return status_.ok() && reader_.Next(); }
  int field() const { return reader_.field(); }
  const FieldPath& path() const { return path_; }
  absl::Status status() const;

  // A number in [minimum, maximum].
  int64_t Count(const char* name, int64_t maximum = kMaxInt64, int64_t minimum = 0);
  uint64_t Unsigned(const char* name);
  int64_t Signed(const char* name);
  uint32_t Fixed32(const char* name);
  uint64_t Fixed64(const char* name);
  absl::string_view Bytes(const char* name);
  // Valid UTF-8 of at most `max_bytes`.
  std::string Text(const char* name, size_t max_bytes);
  // Absent and 0 are the rollout engine.
  Producer ReadProducer(const char* name);
  Codec ReadCodec(const char* name);
  // Appends to `out`, which may not get longer than `max_values`.
  template <typename T>
  void PackedCounts(const char* name, int64_t maximum, size_t max_values, std::vector<T>& out,
                    Reason too_many = Reason::kLength);
  void PackedFixed32(const char* name, std::vector<uint32_t>& out);

  // For what the walk finds besides: keeps the first error.
  void Fail(const absl::Status& status) { status_.Update(status); }
  void FailField(const char* name, absl::string_view message) { Fail(FieldError(path_.Child(name), message)); }
  void FailTooMany(const char* name, size_t limit, Reason reason = Reason::kLength) {
    Fail(FieldError(path_.Child(name), absl::StrCat("more than ", limit), reason));
  }
  // One more element of a repeated message, of which there may be `limit`; null if there are too many.
  template <typename T>
  T* Add(const char* name, size_t limit, std::vector<T>& out);

 private:
  template <typename T>
  T Checked(const char* name, T value);

  ProtobufReader reader_;
  const FieldPath path_;
  absl::Status status_;
};

// A RowRange message: begin <= end <= kMaxRows.
absl::Status ParseRowRange(absl::string_view bytes, const FieldPath& path, RowRange& out);
std::string EncodeRowRange(RowRange range);
// Whether `text` is well-formed UTF-8. Text that is kept must be, or stock protobuf clients cannot read it back.
bool IsUtf8(absl::string_view text);

template <typename T>
void MessageReader::PackedCounts(const char* name, int64_t maximum, size_t max_values, std::vector<T>& out,
                                 Reason too_many) {
  bool in_range = true, fits = true;
  reader_.RepeatedVarint([&](uint64_t value) {
    in_range = in_range && value <= static_cast<uint64_t>(maximum);
    fits = fits && out.size() < max_values;
    if (in_range && fits) out.push_back(static_cast<T>(value));
  });
  Checked(name, 0);
  if (!in_range) FailField(name, absl::StrCat("a value is above ", maximum));
  if (!fits) FailTooMany(name, max_values, too_many);
}

template <typename T>
T* MessageReader::Add(const char* name, size_t limit, std::vector<T>& out) {
  if (out.size() < limit) return &out.emplace_back();
  FailTooMany(name, limit);
  return nullptr;
}

template <typename T>
T MessageReader::Checked(const char* name, T value) {
  if (!reader_.ok()) Fail(FieldError(path_.Child(name), "malformed, or of another wire type", Reason::kEncoding));
  return value;
}

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_MESSAGE_READER_H_
