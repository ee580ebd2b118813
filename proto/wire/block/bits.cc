#include "proto/wire/block/bits.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/block/bits.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The low `bits` bits of every `lane`-bit part of a 64-bit word.
uint64_t LowBitsOfLanes(int bits, int lane) {
  uint64_t mask = 0;
  for (int at = 0; at < 64; at += lane) mask |= ((uint64_t{1} << bits) - 1) << at;
  return mask;
}

// Each word holds fields of `width` bits side by side from bit 0 on. Gives each field a lane of `id_bits` (8 or 16)
// bits, by halving the groups of fields until one field is left: 8 fields of a byte in three steps, 4 of 16 bits in
// two.
void SpreadFields(uint64_t* words, size_t count, int width, int id_bits) {
  const hn::ScalableTag<uint64_t> d;
  for (int lane = 32; lane >= id_bits; lane /= 2) {
    const int group = width * (lane / id_bits);
    const auto low = hn::Set(d, LowBitsOfLanes(group, 2 * lane));
    for (size_t i = 0; i < count; i += hn::Lanes(d)) {
      const auto word = hn::LoadU(d, words + i);
      const auto upper = hn::And(hn::ShiftRightSame(word, group), low);
      hn::StoreU(hn::Or(hn::And(word, low), hn::ShiftLeftSame(upper, lane)), d, words + i);
    }
  }
}

// The inverse: each word holds ids in lanes of `id_bits` bits.
void GatherFields(uint64_t* words, size_t count, int width, int id_bits) {
  const hn::ScalableTag<uint64_t> d;
  for (int lane = id_bits; lane <= 32; lane *= 2) {
    const int group = width * (lane / id_bits);
    const auto low = hn::Set(d, LowBitsOfLanes(group, 2 * lane));
    for (size_t i = 0; i < count; i += hn::Lanes(d)) {
      const auto word = hn::LoadU(d, words + i);
      const auto upper = hn::And(hn::ShiftRightSame(word, lane), low);
      hn::StoreU(hn::Or(hn::And(word, low), hn::ShiftLeftSame(upper, group)), d, words + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routing_replay {
inline namespace wire {
namespace {

HWY_EXPORT(SpreadFields);
HWY_EXPORT(GatherFields);

// Words per batch: a multiple of every vector's lanes, small enough for the stack and the first cache.
constexpr int64_t kWords = 64;

uint64_t Load(const uint8_t* p, int bytes) {
  uint64_t value = 0;
  std::memcpy(&value, p, bytes);
  return value;
}

uint64_t LowBits(int bits) { return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

void PackScalar(const uint8_t* ids, int id_bytes, int width, int64_t begin, int64_t end, uint8_t* out) {
  for (int64_t i = begin; i < end; ++i) {
    const uint64_t id = Load(ids + i * id_bytes, id_bytes);
    CopyBits(reinterpret_cast<const uint8_t*>(&id), 0, out, i * width, width);
  }
}

}  // namespace

void CopyBits(const uint8_t* from, int64_t from_bit, uint8_t* to, int64_t to_bit, int64_t bits) {
  if (from_bit % 8 == 0 && to_bit % 8 == 0 && bits >= 8) {
    std::memcpy(to + to_bit / 8, from + from_bit / 8, bits / 8);
    const int64_t whole = bits / 8 * 8;
    from_bit += whole;
    to_bit += whole;
    bits -= whole;
  }
  // Up to 56 bits at a time: with a shift of up to 7 they lie in 8 bytes.
  for (int64_t done = 0; done < bits;) {
    const int n = static_cast<int>(std::min<int64_t>(56, bits - done));
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
  const int per_word = 8 / id_bytes;
  const int word_bits = per_word * width;
  std::memset(out, 0, (count * width + 7) / 8);
  const int64_t words = count / per_word;
  for (int64_t first = 0; first < words; first += kWords) {
    const int64_t n = std::min(kWords, words - first);
    uint64_t fields[kWords] = {};
    std::memcpy(fields, ids + first * 8, n * 8);
    HWY_DYNAMIC_DISPATCH(GatherFields)(fields, kWords, width, 8 * id_bytes);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t bit = (first + i) * word_bits;
      const int shift = static_cast<int>(bit % 8);
      uint8_t* to = out + bit / 8;
      // Touches only the bytes that hold the word's bits, 8 at most: a word starts on a byte or half a byte, and in the
      // latter case has 60 bits or less. The first byte may hold bits of the previous word.
      const int bytes = (shift + word_bits + 7) / 8;
      const uint64_t low = (fields[i] << shift) | *to;
      std::memcpy(to, &low, bytes);
    }
  }
  PackScalar(ids, id_bytes, width, words * per_word, count, out);
}

void UnpackIds(absl::Span<const uint8_t> packed, int bit_offset, int width, int64_t count, int id_bytes, uint8_t* ids) {
  const int per_word = 8 / id_bytes;
  const int word_bits = per_word * width;
  int64_t done = 0;
  const auto size = static_cast<int64_t>(packed.size());
  while (done + per_word <= count) {
    // Words whose nine bytes all lie inside the input.
    uint64_t fields[kWords] = {};
    int64_t n = 0;
    for (; n < kWords && done + (n + 1) * per_word <= count; ++n) {
      const int64_t bit = bit_offset + done * width + n * word_bits;
      if (bit / 8 + 9 > size) break;
      const int shift = static_cast<int>(bit % 8);
      const uint64_t upper = packed[bit / 8 + 8];
      fields[n] = ((Load(packed.data() + bit / 8, 8) >> shift) | (upper << 1 << (63 - shift))) & LowBits(word_bits);
    }
    if (n == 0) break;
    HWY_DYNAMIC_DISPATCH(SpreadFields)(fields, kWords, width, 8 * id_bytes);
    std::memcpy(ids + done * id_bytes, fields, n * 8);
    done += n * per_word;
  }
  for (int64_t bit = bit_offset + done * width; done < count; ++done, bit += width) {
    const int bytes = static_cast<int>((bit % 8 + width + 7) / 8);
    const uint64_t id = (Load(packed.data() + bit / 8, bytes) >> (bit % 8)) & LowBits(width);
    std::memcpy(ids + done * id_bytes, &id, id_bytes);
  }
}

}  // namespace wire
}  // namespace routing_replay
#endif  // HWY_ONCE
