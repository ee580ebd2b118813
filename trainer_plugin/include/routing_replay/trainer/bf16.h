// bfloat16 on the host: the upper half of an fp32.
#ifndef ROUTING_REPLAY_TRAINER_BF16_H_
#define ROUTING_REPLAY_TRAINER_BF16_H_

#include <bit>
#include <cstdint>

namespace routing_replay::trainer {

// Converts as torch does: to the nearest, ties to even; a NaN stays one.
struct Bf16 {
  uint16_t bits = 0;

  Bf16() = default;
  explicit Bf16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const bool is_nan = (word & 0x7FFFFFFFu) > 0x7F800000u;
    bits = is_nan ? 0x7FC0 : static_cast<uint16_t>((word + 0x7FFFu + (word >> 16 & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_BF16_H_
