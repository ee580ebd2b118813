// IEEE half precision on the host.
#ifndef ROUTING_REPLAY_TRAINER_FP16_H_
#define ROUTING_REPLAY_TRAINER_FP16_H_

#include <bit>
#include <cstdint>

namespace routing_replay::trainer {

// Converts as torch does: to the nearest, ties to even, to infinity from 65520 on; a NaN stays one.
struct Fp16 {
  uint16_t bits = 0;

  Fp16() = default;
  explicit Fp16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    bits = static_cast<uint16_t>((word >> 16 & 0x8000u) | Magnitude(word & 0x7FFFFFFFu));
  }
  explicit operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7FFFu;
    if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | magnitude << 13);
    // The exponents' biases differ by 112, which a product with 2^112 adds for subnormal numbers too.
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
  }

 private:
  static uint32_t Magnitude(uint32_t word) {
    if (word > 0x7F800000u) return 0x7E00u;
    if (word >= 0x477FF000u) return 0x7C00u;
    if (word < 0x38800000u) {
      // Subnormal: multiples of 2^-24. Adding 2^23 of them rounds to a whole one and leaves it in the mantissa.
      const float units = std::bit_cast<float>(word) * 0x1p24f + 0x1p23f;
      return std::bit_cast<uint32_t>(units) & 0x7FFu;
    }
    return (word + 0xFFFu + (word >> 13 & 1u) - (112u << 23)) >> 13;
  }
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_FP16_H_
