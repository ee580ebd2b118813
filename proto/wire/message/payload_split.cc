#include "proto/wire/message/payload_split.h"

#include <algorithm>
#include <optional>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

// A read position in a chain. Only moves forward, so a walk over the whole chain is linear; a copy marks a place.
class Cursor {
 public:
  explicit Cursor(const ByteChain& chain) : chain_(&chain) {}

  size_t position() const { return position_; }
  size_t left() const { return chain_->size() - position_; }

  // Calls `visit` for each stretch of the next `bytes` bytes and passes them. Requires left() >= bytes.
  template <typename Visit>
  void Pass(size_t bytes, Visit visit) {
    while (bytes > 0) {
      const absl::Span<const uint8_t> rest = chain_->spans()[span_].subspan(in_span_);
      const size_t taken = std::min(bytes, rest.size());
      visit(rest.first(taken));
      bytes -= taken;
      position_ += taken;
      in_span_ += taken;
      if (taken == rest.size()) {
        ++span_;
        in_span_ = 0;
      }
    }
  }
  void Skip(size_t bytes) {
    Pass(bytes, [](absl::Span<const uint8_t>) {});
  }

  std::optional<uint64_t> Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70 && left() > 0; shift += 7) {
      uint8_t byte = 0;
      Pass(1, [&](absl::Span<const uint8_t> one) { byte = one.front(); });
      if (shift < 64) value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

 private:
  const ByteChain* chain_;
  size_t position_ = 0;
  size_t span_ = 0;
  size_t in_span_ = 0;
};

absl::Status Malformed(size_t position) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("malformed message at byte ", position),
                   {.reason = Reason::kEncoding});
}

// Bytes of the value of a field of `wire_type` that stand at the cursor; nothing if they cannot be told.
std::optional<uint64_t> ValueSize(Cursor& cursor, uint64_t wire_type) {
  switch (wire_type) {
    case 0:
      return cursor.Varint() ? std::optional<uint64_t>(0) : std::nullopt;
    case 1:
      return 8;
    case 2:
      return cursor.Varint();
    case 5:
      return 4;
    default:
      return std::nullopt;
  }
}

void CopyUpTo(size_t end, Cursor from, std::string& out) {
  from.Pass(end - from.position(), [&](absl::Span<const uint8_t> bytes) {
    out.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  });
}

}  // namespace

absl::StatusOr<SplitMessage> SplitPayload(const ByteChain& bytes, int payload_field) {
  SplitMessage split;
  Cursor cursor(bytes);
  Cursor header = cursor;  // Where the header fields that are not yet copied start.
  Cursor payload = cursor;
  size_t payload_size = 0;
  while (cursor.left() > 0) {
    const size_t field_begin = cursor.position();
    const std::optional<uint64_t> tag = cursor.Varint();
    if (!tag) return Malformed(field_begin);
    const std::optional<uint64_t> size = ValueSize(cursor, *tag & 7);
    if (!size || *size > cursor.left()) return Malformed(field_begin);
    const Cursor value = cursor;
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

}  // namespace routing_replay
