// Conversion between generated messages and values. Every number is checked against its limits on the way into values,
// and an error names the field by its path. The server and the client use the same code.
#ifndef PROTO_WIRE_MESSAGE_MESSAGE_FIELDS_H_
#define PROTO_WIRE_MESSAGE_MESSAGE_FIELDS_H_

#include <google/protobuf/arena.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "routing_replay/v1/common.pb.h"
#include "routing_replay/wire/error_detail.h"
#include "routing_replay/wire/geometry.h"
#include "routing_replay/wire/row_range.h"
#include "routing_replay/wire/sample.h"

namespace routing_replay {
inline namespace wire {

inline constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMaxTokens = kMaxRows + 1;
inline constexpr size_t kMaxLabelBytes = 128;

// Memory for one protobuf message and its sub-messages: a small message uses only the stack.
class StackArena {
 public:
  google::protobuf::Arena* get() { return &arena_; }

 private:
  alignas(8) char first_[2048];
  google::protobuf::Arena arena_{first_, sizeof(first_)};
};

// The position of a field in a message: "append.blocks[3].rows". It becomes text only when there is an error to report.
struct FieldPath {
  const FieldPath* parent = nullptr;
  const char* name = "";  // Empty: the message itself.
  std::optional<size_t> index;

  FieldPath Child(const char* child, std::optional<size_t> i = {}) const { return {this, child, i}; }
  std::string ToString() const;
};

// INVALID_ARGUMENT (kEncoding): the bytes are not a message.
absl::Status MalformedMessage();

// Counts the fields of an encoded message, for limits that are checked before the message is parsed: an empty
// sub-message takes two bytes in encoded form and fifty times that in memory. `path` leads through sub-messages: with
// {4, 5} the first count is that of fields 4, the second that of fields 5 inside them. Malformed bytes end the count.
void CountFields(absl::string_view message, absl::Span<const int> path, size_t* counts);
template <size_t kDepth>
std::array<size_t, kDepth> CountFields(absl::string_view message, const int (&path)[kDepth]) {
  std::array<size_t, kDepth> counts{};
  CountFields(message, path, counts.data());
  return counts;
}

// Reads the fields of one message. status() returns the first error; values read after an error must not be used.
class MessageFields {
 public:
  explicit MessageFields(const FieldPath& path = {}) : path_(path) {}

  const absl::Status& status() const { return status_; }

  // Returns `value`; outside of [minimum, maximum], fails and returns `minimum`.
  int64_t Count(const char* name, uint64_t value, int64_t maximum = kMaxInt64, int64_t minimum = 0);
  // Reads an enum with the numbers 1 to `last`; others are errors. 0 is an error unless `zero_is` says what 0 means.
  template <typename Enum>
  Enum Known(const char* name, int value, Enum last, std::optional<Enum> zero_is, Reason reason = Reason::kField);
  // An unspecified producer means the rollout engine.
  Producer ReadProducer(const char* name, v1::Producer value);
  Codec ReadCodec(const char* name, v1::Codec value);
  // An unspecified value gives nullopt.
  std::optional<Codec> ReadAnyCodec(const char* name, v1::Codec value);
  std::optional<Durability> ReadAnyDurability(const char* name, v1::Durability value);
  // Returns a text, and checks that it has at most `max_bytes`. Protobuf has already checked that it is UTF-8.
  const std::string& Text(const char* name, const std::string& value, size_t max_bytes = kMaxLabelBytes);
  RowRange Range(const char* name, std::optional<size_t> index, const v1::RowRange& value);
  std::vector<RowRange> Ranges(const char* name, const google::protobuf::RepeatedPtrField<v1::RowRange>& values);
  std::vector<WeightSpan> Weights(const char* name, const google::protobuf::RepeatedPtrField<v1::WeightSpan>& values);
  // Fails if the list is not normal (row_range.h) or not inside `bounds`.
  void CheckRanges(const char* name, absl::Span<const RowRange> ranges, RowRange bounds);

  // Reports the result of a check that the caller made itself. Only the first error is kept.
  void Fail(const absl::Status& status) { status_.Update(status); }
  // INVALID_ARGUMENT "PATH.NAME: MESSAGE".
  void FailField(const char* name, absl::string_view message, Reason reason = Reason::kField);

 private:
  const FieldPath path_;
  absl::Status status_;
};

template <typename Enum>
Enum MessageFields::Known(const char* name, int value, Enum last, std::optional<Enum> zero_is, Reason reason) {
  if (value == 0 && zero_is) return *zero_is;
  if (value > 0 && value <= static_cast<int>(last)) return static_cast<Enum>(value);
  FailField(name, value == 0 ? "missing" : absl::StrCat("unknown value ", value), reason);
  return last;
}

v1::RoutingGeometry ToProto(const Geometry& geometry);
absl::StatusOr<Geometry> FromProto(const v1::RoutingGeometry& geometry);
v1::SampleState ToProto(const SampleState& state);
absl::StatusOr<SampleState> FromProto(const v1::SampleState& state);

inline v1::Producer ToProto(Producer producer) { return static_cast<v1::Producer>(producer); }
inline v1::Codec ToProto(std::optional<Codec> codec) { return static_cast<v1::Codec>(codec ? *codec : Codec{}); }
inline v1::Durability ToProto(std::optional<Durability> durability) {
  return static_cast<v1::Durability>(durability ? *durability : Durability{});
}
v1::RowRange ToProto(RowRange range);
v1::WeightSpan ToProto(const WeightSpan& span);
v1::TokenCheck ToProto(const TokenCheck& check);

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_MESSAGE_FIELDS_H_
