#include "proto/wire/block/bits.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "proto/wire/block/bits.cc"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#ifndef PROTO_WIRE_BLOCK_BITS_FIELDS_
#define PROTO_WIRE_BLOCK_BITS_FIELDS_
namespace routing_replay {
inline namespace wire {

inline constexpr size_t kGroupBytes = 16;  // A group: this many bytes of ids, converted together as two 64-bit words.
inline constexpr size_t kMostGroups = 4;   // A vector has at most this many groups.

// Ids of `id_bits` bits (8 or 16), packed into `width` bits each.
struct Fields {
  size_t id_bits;
  size_t width;

  size_t group_ids() const { return 8 * kGroupBytes / id_bits; }
  size_t word_bits() const { return 64 / id_bits * width; }
  size_t group_bytes() const { return 2 * word_bits() / 8; }  // Size of a packed group; always whole bytes.
};

inline uint64_t LowBits(size_t bits) { return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1; }

}  // namespace wire
}  // namespace routing_replay
#endif  // PROTO_WIRE_BLOCK_BITS_FIELDS_

HWY_BEFORE_NAMESPACE();
namespace routing_replay {
inline namespace wire {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

size_t PackGroups(Fields fields, const uint8_t* ids, size_t groups, uint8_t* out) {
  std::memset(out, 0, groups * fields.group_bytes());
  for (size_t i = 0; i < groups * fields.group_ids(); ++i) {
    CopyBits(ids + i * fields.id_bits / 8, 0, out, i * fields.width, fields.width);
  }
  return groups;
}

size_t UnpackGroups(Fields fields, const uint8_t* packed, size_t offset, size_t groups, uint8_t* ids) {
  std::memset(ids, 0, groups * kGroupBytes);
  for (size_t i = 0; i < groups * fields.group_ids(); ++i) {
    CopyBits(packed, offset + i * fields.width, ids, i * fields.id_bits, fields.width);
  }
  return groups;
}

#else

namespace hn = hwy::HWY_NAMESPACE;

// Vectors of bytes that have one, two or four groups, depending on the CPU; and the same vectors as 64-bit words.
using Bytes = hn::CappedTag<uint8_t, HWY_HAVE_SCALABLE ? kGroupBytes : kMostGroups * kGroupBytes>;
using Words = hn::Repartition<uint64_t, Bytes>;
constexpr size_t kVectorGroups = hn::MaxLanes(Bytes()) / kGroupBytes;

// Load and store a vector of groups that lie `step` bytes apart.
template <class D>
hn::Vec<D> LoadGroups(D d, const uint8_t* from, size_t step) {
  if constexpr (hn::MaxLanes(D()) == kGroupBytes) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    const uint8_t* upper = from + hn::MaxLanes(half) / kGroupBytes * step;
    return hn::Combine(d, LoadGroups(half, upper, step), LoadGroups(half, from, step));
  }
}
template <class D>
void StoreGroups(hn::Vec<D> groups, D d, uint8_t* to, size_t step) {
  if constexpr (hn::MaxLanes(D()) == kGroupBytes) {
    hn::StoreU(groups, d, to);
  } else {
    const hn::Half<D> half;
    StoreGroups(hn::LowerHalf(half, groups), half, to, step);
    StoreGroups(hn::UpperHalf(half, groups), half, to + hn::MaxLanes(half) / kGroupBytes * step, step);
  }
}

// Returns indices for TableLookupBytesOr0: in each group, they move the eight bytes that begin at `first` to
// `at`, and set all other bytes to 0.
hn::Vec<Bytes> MoveWord(size_t first, size_t at) {
  const Bytes d;
  const auto place =
      hn::Sub(hn::And(hn::Iota(d, 0), hn::Set(d, kGroupBytes - 1)), hn::Set(d, static_cast<uint8_t>(at)));
  return hn::IfThenElse(hn::Lt(place, hn::Set(d, 8)), hn::Add(place, hn::Set(d, static_cast<uint8_t>(first))),
                        hn::Set(d, 0x80));
}

// Gather moves the ids of a 64-bit word together, so that they become adjacent fields of `width` bits: first pairs of
// ids, then pairs of pairs, … Spread is its inverse.
template <size_t kIdBits>
class Steps {
 public:
  explicit Steps(size_t width) {
    for (size_t i = 0; i < kCount; ++i) {
      const size_t lane = kIdBits << i, bits = width << i;
      const uint64_t low = LowBits(bits) * (~uint64_t{0} / LowBits(2 * lane));
      steps_[i] = {static_cast<int>(lane - bits), low, low << bits, low << lane};
    }
  }
  hn::Vec<Words> Gather(hn::Vec<Words> word) const {
    const Words d;
    for (size_t i = 0; i < kCount; ++i) {
      const auto upper = hn::And(hn::ShiftRightSame(word, steps_[i].shift), hn::Set(d, steps_[i].upper_near));
      word = hn::Or(hn::And(word, hn::Set(d, steps_[i].low)), upper);
    }
    return word;
  }
  // Bits of `word` above its last field are ignored.
  hn::Vec<Words> Spread(hn::Vec<Words> word) const {
    const Words d;
    for (size_t i = kCount; i-- > 0;) {
      const auto upper = hn::And(hn::ShiftLeftSame(word, steps_[i].shift), hn::Set(d, steps_[i].upper_apart));
      word = hn::Or(hn::And(word, hn::Set(d, steps_[i].low)), upper);
    }
    return word;
  }

 private:
  static constexpr size_t kCount = kIdBits == 8 ? 3 : 2;
  struct Step {
    int shift;
    uint64_t low, upper_near, upper_apart;  // Masks: lower fields; upper fields when gathered, and when spread.
  };
  Step steps_[kCount];
};

template <size_t kIdBits>
size_t PackWords(Fields fields, const uint8_t* ids, size_t groups, uint8_t* out) {
  const Bytes d;
  const Words dw;
  const int shift = static_cast<int>(fields.word_bits() % 8);
  const auto first = MoveWord(0, 0), second = MoveWord(8, fields.word_bits() / 8);
  const Steps<kIdBits> steps(fields.width);
  size_t i = 0;
  for (; i + kVectorGroups <= groups; i += kVectorGroups) {
    const auto words = steps.Gather(hn::BitCast(dw, hn::LoadU(d, ids + i * kGroupBytes)));
    const auto shifted = hn::BitCast(d, hn::ShiftLeftSame(words, shift));
    StoreGroups(hn::Or(hn::TableLookupBytesOr0(hn::BitCast(d, words), first), hn::TableLookupBytesOr0(shifted, second)),
                d, out + i * fields.group_bytes(), fields.group_bytes());
  }
  return i;
}

template <size_t kIdBits>
size_t UnpackWords(Fields fields, const uint8_t* packed, size_t offset, size_t groups, uint8_t* ids) {
  const Bytes d;
  const Words dw;
  const size_t second_bit = offset + fields.word_bits();
  const int shift = static_cast<int>(offset), second_shift = static_cast<int>(second_bit % 8);
  const auto first = MoveWord(0, 0), second = MoveWord(second_bit / 8, 8);
  const Steps<kIdBits> steps(fields.width);
  size_t i = 0;
  for (; i + kVectorGroups <= groups; i += kVectorGroups) {
    const auto bytes = LoadGroups(d, packed + i * fields.group_bytes(), fields.group_bytes());
    const auto words =
        hn::Or(hn::ShiftRightSame(hn::BitCast(dw, hn::TableLookupBytesOr0(bytes, first)), shift),
               hn::ShiftRightSame(hn::BitCast(dw, hn::TableLookupBytesOr0(bytes, second)), second_shift));
    hn::StoreU(hn::BitCast(d, steps.Spread(words)), d, ids + i * kGroupBytes);
  }
  return i;
}

size_t PackGroups(Fields fields, const uint8_t* ids, size_t groups, uint8_t* out) {
  return fields.id_bits == 8 ? PackWords<8>(fields, ids, groups, out) : PackWords<16>(fields, ids, groups, out);
}

size_t UnpackGroups(Fields fields, const uint8_t* packed, size_t offset, size_t groups, uint8_t* ids) {
  return fields.id_bits == 8 ? UnpackWords<8>(fields, packed, offset, groups, ids)
                             : UnpackWords<16>(fields, packed, offset, groups, ids);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace wire
}  // namespace routing_replay
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace routing_replay {
inline namespace wire {
namespace {

// PackGroups and UnpackGroups convert as many of `groups` groups as fill whole vectors, and return that number. For
// each group they read and write kGroupBytes bytes, even if a packed group is shorter.
HWY_EXPORT(PackGroups);
HWY_EXPORT(UnpackGroups);

// How many groups, `step` bytes apart, can be accessed with kGroupBytes each inside `size` bytes; at most `count`.
size_t WholeGroups(size_t size, size_t step, size_t count) {
  return size < kGroupBytes ? 0 : std::min(count, (size - kGroupBytes) / step + 1);
}

// The remaining groups go through a padded buffer. At most these remain: groups in the last kGroupBytes bytes (a packed
// group has at least one byte), a partial group, and groups that do not fill a vector.
constexpr size_t kMaxRestGroups = kGroupBytes + kMostGroups;
size_t RestGroups(size_t ids, Fields fields) {
  return ((ids - 1) / fields.group_ids() / kMostGroups + 1) * kMostGroups;
}

uint64_t Load(const uint8_t* p, size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, p, bytes);
  return value;
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
  // Copies up to 56 bits at a time: with a shift of up to 7 bits they fit in 8 bytes.
  for (int64_t done = 0; done < bits;) {
    const int64_t n = std::min<int64_t>(56, bits - done);
    const int64_t f = from_bit + done, t = to_bit + done;
    const uint64_t value = (Load(from + f / 8, (f % 8 + n + 7) / 8) >> (f % 8)) & LowBits(n);
    const int64_t bytes = (t % 8 + n + 7) / 8;
    uint64_t target = Load(to + t / 8, bytes);
    target = (target & ~(LowBits(n) << (t % 8))) | (value << (t % 8));
    std::memcpy(to + t / 8, &target, bytes);
    done += n;
  }
}

void PackIds(const uint8_t* ids, int id_bytes, int width, int64_t count, uint8_t* out) {
  const Fields fields{8 * static_cast<size_t>(id_bytes), static_cast<size_t>(width)};
  const size_t size = (count * width + 7) / 8;
  const size_t whole = WholeGroups(size, fields.group_bytes(), count / fields.group_ids());
  const size_t done = HWY_DYNAMIC_DISPATCH(PackGroups)(fields, ids, whole, out);
  const size_t rest = count - done * fields.group_ids();
  if (rest == 0) return;
  uint8_t from[kMaxRestGroups * kGroupBytes] = {}, to[kMaxRestGroups * kGroupBytes];
  std::memcpy(from, ids + done * kGroupBytes, rest * id_bytes);
  HWY_DYNAMIC_DISPATCH(PackGroups)(fields, from, RestGroups(rest, fields), to);
  std::memcpy(out + done * fields.group_bytes(), to, size - done * fields.group_bytes());
}

void UnpackIds(absl::Span<const uint8_t> packed, int bit_offset, int width, int64_t count, int id_bytes, uint8_t* ids) {
  const Fields fields{8 * static_cast<size_t>(id_bytes), static_cast<size_t>(width)};
  const auto offset = static_cast<size_t>(bit_offset);
  if (std::max(offset, (offset + fields.word_bits()) % 8) + fields.word_bits() > 64) {
    // A word may span nine bytes. This happens only with 15-bit ids, which no known model has.
    std::memset(ids, 0, count * id_bytes);
    for (int64_t i = 0; i < count; ++i) CopyBits(packed.data(), bit_offset + i * width, ids, 8 * i * id_bytes, width);
    return;
  }
  const size_t whole = WholeGroups(packed.size(), fields.group_bytes(), count / fields.group_ids());
  const size_t done = HWY_DYNAMIC_DISPATCH(UnpackGroups)(fields, packed.data(), offset, whole, ids);
  const size_t rest = count - done * fields.group_ids();
  if (rest == 0) return;
  uint8_t from[kMaxRestGroups * kGroupBytes] = {}, to[kMaxRestGroups * kGroupBytes];
  std::memcpy(from, packed.data() + done * fields.group_bytes(), (offset + rest * width + 7) / 8);
  HWY_DYNAMIC_DISPATCH(UnpackGroups)(fields, from, offset, RestGroups(rest, fields), to);
  std::memcpy(ids + done * kGroupBytes, to, rest * id_bytes);
}

}  // namespace wire
}  // namespace routing_replay
#endif  // HWY_ONCE
