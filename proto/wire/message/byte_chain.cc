#include "proto/wire/message/byte_chain.h"

#include <algorithm>
#include <cstring>

namespace routing_replay {

ByteChain ByteChain::Sub(size_t offset, size_t size) const {
  ByteChain out;
  for (const absl::Span<const uint8_t> span : spans_) {
    if (size == 0) break;
    if (offset >= span.size()) {
      offset -= span.size();
      continue;
    }
    const size_t taken = std::min(size, span.size() - offset);
    out.Append(span.subspan(offset, taken));
    size -= taken;
    offset = 0;
  }
  return out;
}

void ByteChain::CopyTo(size_t offset, absl::Span<uint8_t> out) const {
  uint8_t* to = out.data();
  const ByteChain part = Sub(offset, out.size());
  for (const absl::Span<const uint8_t> span : part.spans()) {
    std::memcpy(to, span.data(), span.size());
    to += span.size();
  }
}

absl::Span<const uint8_t> ByteChain::Flatten(Buffer& scratch) const {
  if (spans_.empty()) return {};
  if (spans_.size() == 1) return spans_.front();
  scratch = Buffer(size_);
  CopyTo(0, scratch.span());
  return scratch.span();
}

}  // namespace routing_replay
