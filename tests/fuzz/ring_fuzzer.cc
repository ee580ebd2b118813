// Rings in shared memory whose other end is hostile: it may write any state at any time. A reader or writer must not
// touch memory outside the ring and the buffer of the call, nor move more bytes than either holds.
#include <algorithm>
#include <cstring>
#include <vector>

#include "proto/wire/buffer.h"
#include "proto/wire/ring/shared_rings.h"
#include "tests/fuzz/smoke.h"

namespace {

constexpr size_t kRing = 64;
constexpr uint8_t kMine = 0xA5;  // Fills everything that must not change.

void Check(const absl::StatusOr<size_t>& moved, size_t most) {
  Require(!moved.ok() || *moved <= std::min(most, kRing), "more bytes were moved than the ring or the buffer holds");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace routing_replay;  // NOLINT(google-build-using-namespace)
  RingState in{}, out{};
  Buffer memory(4 * kRing);
  std::memset(memory.data(), kMine, memory.size());
  RingReader reader(in, memory.span().subspan(kRing, kRing));
  RingWriter writer(out, memory.span().subspan(kRing, kRing));
  constexpr size_t kStep = 10;  // Operation, size, and 8 bytes of position.
  for (size_t at = 0; at + kStep <= size; at += kStep) {
    uint64_t position = 0;
    std::memcpy(&position, data + at + 2, sizeof(position));
    std::vector<uint8_t> mine(data[at + 1], kMine);
    const iovec piece{mine.data(), mine.size()};
    switch (data[at] % 8) {
      case 0:
        in.written = position;
        break;
      case 1:
        out.read = position;
        break;
      case 2:
        in.written += position % (2 * kRing);
        break;
      case 3:
        out.read += position % (2 * kRing);
        break;
      case 4:
        in.writer_waits = out.reader_waits = static_cast<uint32_t>(position);
        break;
      case 5:
        Check(reader.Read({&piece, 1}), mine.size());
        reader.MustWake();
        break;
      case 6:
        Check(writer.Write({&piece, 1}), mine.size());
        writer.MustWake(position % 2 == 0);
        break;
      default:
        reader.Wait().IgnoreError();
        writer.Wait().IgnoreError();
    }
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool of_ring = i >= kRing && i < 2 * kRing;
    Require(of_ring || memory.data()[i] == kMine, "memory outside the ring was written");
  }
  return 0;
}
