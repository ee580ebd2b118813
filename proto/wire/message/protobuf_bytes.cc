#include "proto/wire/message/protobuf_bytes.h"

namespace routing_replay {
inline namespace wire {

void ProtobufWriter::RawVarint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
  bytes_.push_back(static_cast<char>(value));
}

void ProtobufWriter::VarintAlways(int field, uint64_t value) {
  Tag(field, 0);
  RawVarint(value);
}

void ProtobufWriter::Fixed32Always(int field, uint32_t value) {
  Tag(field, 5);
  for (int i = 0; i < 4; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
}

void ProtobufWriter::Fixed64(int field, uint64_t value) {
  if (value == 0) return;
  Tag(field, 1);
  for (int i = 0; i < 8; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
}

void ProtobufWriter::BytesAlways(int field, absl::string_view value) {
  BytesPrefix(field, value.size());
  bytes_.append(value.data(), value.size());
}

void ProtobufWriter::PackedFixed32(int field, absl::Span<const uint32_t> values) {
  if (values.empty()) return;
  BytesPrefix(field, 4 * values.size());
  for (const uint32_t value : values) {
    for (int i = 0; i < 4; ++i) bytes_.push_back(static_cast<char>(value >> (8 * i)));
  }
}

void ProtobufWriter::BytesPrefix(int field, uint64_t size) {
  Tag(field, 2);
  RawVarint(size);
}

bool ProtobufReader::ReadVarint(absl::string_view& from, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 70 && !from.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(from.front());
    from.remove_prefix(1);
    if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool ProtobufReader::ReadFixed(absl::string_view& from, int size, uint64_t& value) {
  if (from.size() < static_cast<size_t>(size)) return false;
  value = 0;
  for (int i = 0; i < size; ++i) value |= static_cast<uint64_t>(static_cast<unsigned char>(from[i])) << (8 * i);
  from.remove_prefix(size);
  return true;
}

bool ProtobufReader::Next() {
  uint64_t tag;
  if (!ok_ || rest_.empty()) return false;
  if (!ReadVarint(rest_, tag) || tag >> 3 == 0 || tag >> 3 > (1u << 29) - 1) return Fail();
  field_ = static_cast<int>(tag >> 3);
  wire_type_ = static_cast<int>(tag & 7);
  switch (wire_type_) {
    case kVarint:
      return ReadVarint(rest_, value_) || Fail();
    case kFixed64:
      return ReadFixed(rest_, 8, value_) || Fail();
    case kFixed32:
      return ReadFixed(rest_, 4, value_) || Fail();
    case kBytes:
      if (!ReadVarint(rest_, value_) || value_ > rest_.size()) return Fail();
      view_ = rest_.substr(0, value_);
      rest_.remove_prefix(value_);
      return true;
    default:
      return Fail();  // Groups are not used by proto3.
  }
}

uint64_t ProtobufReader::varint() {
  if (wire_type_ != kVarint) Fail();
  return ok_ ? value_ : 0;
}

uint32_t ProtobufReader::fixed32() {
  if (wire_type_ != kFixed32) Fail();
  return ok_ ? static_cast<uint32_t>(value_) : 0;
}

uint64_t ProtobufReader::fixed64() {
  if (wire_type_ != kFixed64) Fail();
  return ok_ ? value_ : 0;
}

absl::string_view ProtobufReader::bytes() {
  if (wire_type_ != kBytes) Fail();
  return ok_ ? view_ : absl::string_view();
}

}  // namespace wire
}  // namespace routing_replay
