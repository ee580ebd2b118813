#include "proto/wire/message/byte_chain.h"

#include <cstring>

namespace routing_replay {
inline namespace wire {

absl::Span<const uint8_t> ByteChain::Flatten(Buffer& scratch) const {
  if (spans_.empty()) return {};
  if (spans_.size() == 1) return spans_.front();
  scratch = Buffer(size_);
  ChainCursor(*this).CopyTo(scratch.span());
  return scratch.span();
}

absl::Span<const uint8_t> ChainCursor::Take(size_t bytes, Buffer& scratch) {
  if (bytes == 0) return {};
  const absl::Span<const uint8_t> rest = chain_->spans()[span_].subspan(in_span_);
  if (rest.size() >= bytes) {
    Skip(bytes);
    return rest.first(bytes);
  }
  if (scratch.size() < bytes) scratch = Buffer(bytes);
  CopyTo(scratch.span().first(bytes));
  return scratch.span().first(bytes);
}

void ChainCursor::CopyTo(absl::Span<uint8_t> out) {
  uint8_t* to = out.data();
  Pass(out.size(), [&](absl::Span<const uint8_t> part) {
    std::memcpy(to, part.data(), part.size());
    to += part.size();
  });
}

}  // namespace wire
}  // namespace routing_replay
