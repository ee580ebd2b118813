#include "proto/wire/message/payload_split.h"

#include <algorithm>
#include <optional>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
inline namespace wire {
namespace {

std::optional<uint64_t> ReadVarint(ChainCursor& cursor) {
  uint64_t value = 0;
  for (int shift = 0; shift < 70 && cursor.left() > 0; shift += 7) {
    uint8_t byte = 0;
    cursor.Pass(1, [&](absl::Span<const uint8_t> one) { byte = one.front(); });
    if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  return std::nullopt;
}

absl::Status Malformed(size_t position) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("malformed message at byte ", position),
                   {.reason = Reason::kEncoding});
}

// Returns the number of bytes left to skip of a field's value; reads varints, also the one that states a length.
std::optional<uint64_t> ValueSize(ChainCursor& cursor, uint64_t wire_type) {
  switch (wire_type) {
    case 0:
      return ReadVarint(cursor) ? std::optional<uint64_t>(0) : std::nullopt;
    case 1:
      return 8;
    case 2:
      return ReadVarint(cursor);
    case 5:
      return 4;
    default:
      return std::nullopt;
  }
}

void CopyUpTo(size_t end, ChainCursor from, std::string& out) {
  from.Pass(end - from.position(), [&](absl::Span<const uint8_t> bytes) {
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
}

}  // namespace

absl::StatusOr<SplitMessage> SplitPayload(const ByteChain& bytes, int payload_field) {
  SplitMessage split;
  ChainCursor cursor(bytes);
  ChainCursor header = cursor;  // Where the header fields that are not yet copied start.
  ChainCursor payload = cursor;
  size_t payload_size = 0;
  while (cursor.left() > 0) {
    const size_t field_begin = cursor.position();
    const std::optional<uint64_t> tag = ReadVarint(cursor);
    if (!tag) return Malformed(field_begin);
    const std::optional<uint64_t> size = ValueSize(cursor, *tag & 7);
    if (!size || *size > cursor.left()) return Malformed(field_begin);
    const ChainCursor value = cursor;
    cursor.Skip(*size);
    if (*tag >> 3 != static_cast<uint64_t>(payload_field) || (*tag & 7) != 2) continue;
    CopyUpTo(field_begin, header, split.header);
    header = cursor;
    payload = value;
    payload_size = *size;
  }
  CopyUpTo(bytes.size(), header, split.header);
  payload.Pass(payload_size, [&](absl::Span<const uint8_t> part) { split.payload.Append(part); });
  return split;
}

void AppendPayloadPrefix(int payload_field, size_t payload_size, std::string& message) {
  if (payload_size == 0) return;
  const auto add_varint = [&](uint64_t value) {
    for (; value >= 0x80; value >>= 7) message.push_back(static_cast<char>(value | 0x80));
    message.push_back(static_cast<char>(value));
  };
  add_varint(static_cast<uint64_t>(payload_field) << 3 | 2);
  add_varint(payload_size);
}

}  // namespace wire
}  // namespace routing_replay
