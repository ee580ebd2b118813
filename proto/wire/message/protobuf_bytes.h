// The protobuf wire format by hand: tags, varints, fixed and length-delimited fields. For the few messages that carry
// or announce payload bytes; everything else uses generated classes. Format: protobuf.dev/programming-guides/encoding.
#ifndef PROTO_WIRE_MESSAGE_PROTOBUF_BYTES_H_
#define PROTO_WIRE_MESSAGE_PROTOBUF_BYTES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace routing_replay {
inline namespace wire {

// Appends fields to a string. Scalar fields of value 0 and empty strings are left out, as proto3 does; the Always forms
// write them (optional fields, elements of repeated ones).
class ProtobufWriter {
 public:
  void Varint(int field, uint64_t value) {
    if (value != 0) VarintAlways(field, value);
  }
  void VarintAlways(int field, uint64_t value);
  // int64 and int32 fields: negative values take ten bytes.
  void Int(int field, int64_t value) { Varint(field, static_cast<uint64_t>(value)); }
  void IntAlways(int field, int64_t value) { VarintAlways(field, static_cast<uint64_t>(value)); }
  void Fixed32Always(int field, uint32_t value);
  void Fixed64(int field, uint64_t value);
  void Bytes(int field, absl::string_view value) {
    if (!value.empty()) BytesAlways(field, value);
  }
  // Also for sub-messages: pass their bytes.
  void BytesAlways(int field, absl::string_view value);
  void PackedFixed32(int field, absl::Span<const uint32_t> values);
  template <typename T>
  void PackedVarint(int field, const T& values) {
    if (values.empty()) return;
    ProtobufWriter packed;
    for (const auto value : values) packed.RawVarint(static_cast<uint64_t>(value));
    BytesAlways(field, packed.bytes());
  }
  // Tag and length of a bytes field whose `size` bytes the caller sends right after.
  void BytesPrefix(int field, uint64_t size);

  const std::string& bytes() const { return bytes_; }
  std::string Take() { return std::move(bytes_); }

 private:
  void RawVarint(uint64_t value);
  void Tag(int field, int wire_type) { RawVarint(static_cast<uint64_t>(field) << 3 | wire_type); }

  std::string bytes_;
};

// Walks the fields of one message. Usage:
//
//   ProtobufReader reader(bytes);
//   while (reader.Next()) switch (reader.field()) { case 1: x = reader.varint(); break; … }
//   if (!reader.ok()) …  // malformed
//
// Fields that the switch does not name are skipped. A field read through an accessor of another wire type makes the
// reader fail instead of giving a wrong value. Views point into the bytes given.
class ProtobufReader {
 public:
  explicit ProtobufReader(absl::string_view bytes) : rest_(bytes) {}

  bool Next();
  bool ok() const { return ok_; }
  int field() const { return field_; }
  uint64_t varint();
  int64_t int64() { return static_cast<int64_t>(varint()); }
  uint32_t fixed32();
  uint64_t fixed64();
  absl::string_view bytes();
  // A repeated fixed32 or varint field, packed or not: calls `add` for each value.
  template <typename Add>
  void RepeatedFixed32(Add add);
  template <typename Add>
  void RepeatedVarint(Add add);

 private:
  enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  bool Fail() { return ok_ = false; }
  bool ReadVarint(absl::string_view& from, uint64_t& value);
  bool ReadFixed(absl::string_view& from, int size, uint64_t& value);

  absl::string_view rest_;
  bool ok_ = true;
  int field_ = 0;
  int wire_type_ = kVarint;
  uint64_t value_ = 0;
  absl::string_view view_;
};

template <typename Add>
void ProtobufReader::RepeatedFixed32(Add add) {
  if (wire_type_ != kBytes) return add(fixed32());
  uint64_t value;
  for (absl::string_view packed = view_; !packed.empty();) {
    if (!ReadFixed(packed, 4, value)) {
      Fail();
      return;
    }
    add(static_cast<uint32_t>(value));
  }
}

template <typename Add>
void ProtobufReader::RepeatedVarint(Add add) {
  if (wire_type_ != kBytes) return add(varint());
  uint64_t value;
  for (absl::string_view packed = view_; !packed.empty();) {
    if (!ReadVarint(packed, value)) {
      Fail();
      return;
    }
    add(value);
  }
}

}  // namespace wire
}  // namespace routing_replay

#endif  // PROTO_WIRE_MESSAGE_PROTOBUF_BYTES_H_
