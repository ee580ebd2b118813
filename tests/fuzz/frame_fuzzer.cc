// Takes random bytes for frames of the direct path, which arrive in pieces of any size. The reader must not read a
// frame that was not admitted, and a complete frame must have the sizes that its head states.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "proto/wire/message/append_message.h"
#include "proto/wire/message/frame.h"
#include "tests/fuzz/smoke.h"

namespace {

using routing_replay::Frame;
using routing_replay::FrameReader;

constexpr uint64_t kMost = 1 << 16;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  Frame last;
  FrameReader reader([&](const Frame& frame) {
    last = frame;
    const bool too_long = frame.header_bytes > kMost || frame.payload_bytes > kMost;
    return too_long ? absl::ResourceExhaustedError("too long") : absl::OkStatus();
  });
  const size_t step = data[0] % 32 + 1;
  for (size_t at = 1; at < size;) {
    const auto space = reader.Space();
    if (space.empty() || space.front().iov_len == 0) std::abort();
    const size_t bytes = std::min({space.front().iov_len, size - at, step});
    std::memcpy(space.front().iov_base, data + at, bytes);
    at += bytes;
    if (!reader.Advance(bytes).ok()) return 0;
    if (!reader.done()) continue;
    const routing_replay::ReceivedFrame frame = reader.Take();
    const routing_replay::ByteChain chain = frame.chain();
    if (chain.size() != last.header_bytes + last.payload_bytes || frame.header().size() != last.header_bytes) {
      std::abort();
    }
    routing_replay::ParseAppendRequest(chain).IgnoreError();
  }
  return 0;
}
