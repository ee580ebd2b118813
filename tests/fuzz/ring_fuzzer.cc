// Rings of shared memory whose other end says and does what it likes: no end touches anything but its ring and what it
// was given, nor moves more than there is.
#include <algorithm>
#include <cstring>
#include <vector>

#include "proto/wire/buffer.h"
#include "proto/wire/ring/byte_ring.h"
#include "tests/fuzz/smoke.h"

namespace {

constexpr size_t kRing = 64;
constexpr uint8_t kMine = 0xA5;  // Around what the other end may change.

void Check(const absl::StatusOr<size_t>& moved, size_t most) {
  Require(!moved.ok() || *moved <= std::min(most, kRing), "more was moved than there is");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace routing_replay;  // NOLINT(google-build-using-namespace)
  RingState in{}, out{};
  Buffer memory(4 * kRing);
  std::memset(memory.data(), kMine, memory.size());
  RingReader reader(in, memory.span().subspan(kRing, kRing));
  RingWriter writer(out, memory.span().subspan(kRing, kRing));
  constexpr size_t kStep = 10;  // What is done, how much of it, and a position.
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
    Require(of_ring || memory.data()[i] == kMine, "something else was written");
  }
  return 0;
}
