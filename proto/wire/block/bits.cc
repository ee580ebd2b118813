#include "proto/wire/block/bits.h"

#include <cstring>

namespace routing_replay {
namespace {

uint64_t Load(const uint8_t* p, int bytes) {
  uint64_t value = 0;
  std::memcpy(&value, p, bytes);
  return value;
}

uint64_t LowBits(int bits) { return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

}  // namespace

void CopyBits(const uint8_t* from, int64_t from_bit, uint8_t* to, int64_t to_bit, int64_t bits) {
  // Up to 56 bits at a time: with a shift of up to 7 they lie in 8 bytes.
  for (int64_t done = 0; done < bits;) {
    const int64_t n = std::min<int64_t>(56, bits - done);
    const int64_t f = from_bit + done, t = to_bit + done;
    const uint64_t value = (Load(from + f / 8, static_cast<int>((f % 8 + n + 7) / 8)) >> (f % 8)) & LowBits(n);
    const int bytes = static_cast<int>((t % 8 + n + 7) / 8);
    uint64_t target = Load(to + t / 8, bytes);
    target = (target & ~(LowBits(n) << (t % 8))) | (value << (t % 8));
    std::memcpy(to + t / 8, &target, bytes);
    done += n;
  }
}

void PackIds(const uint8_t* ids, int id_bytes, int width, int64_t count, uint8_t* out) {
  uint64_t pending = 0;
  int pending_bits = 0;
  for (int64_t i = 0; i < count; ++i) {
    pending |= Load(ids + i * id_bytes, id_bytes) << pending_bits;
    for (pending_bits += width; pending_bits >= 8; pending_bits -= 8, pending >>= 8) {
      *out++ = static_cast<uint8_t>(pending);
    }
  }
  if (pending_bits > 0) *out = static_cast<uint8_t>(pending);
}

void UnpackIds(absl::Span<const uint8_t> packed, int bit_offset, int width, int64_t count, int id_bytes, uint8_t* ids) {
  for (int64_t i = 0, bit = bit_offset; i < count; ++i, bit += width) {
    const int bytes = static_cast<int>((bit % 8 + width + 7) / 8);
    const uint64_t id = (Load(packed.data() + bit / 8, bytes) >> (bit % 8)) & LowBits(width);
    std::memcpy(ids + i * id_bytes, &id, id_bytes);
  }
}

}  // namespace routing_replay
