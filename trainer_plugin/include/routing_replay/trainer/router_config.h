// The plain data of a router: dtypes, what a MoE layer computes, and the counters of its calls. Includes only standard
// headers, because CUDA code includes this file, too.
#ifndef ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_
#define ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_

#include <bit>
#include <cstdint>

namespace routing_replay::trainer {

enum class Dtype : uint8_t { kFloat32 = 0, kFloat64 = 1, kBfloat16 = 2, kFloat16 = 3 };

// A bfloat16 number. A float is rounded as torch does: to the nearest, ties to even; NaN stays NaN.
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

// An fp16 number. A float is rounded as for Bf16; absolute values from 65520 on become infinity.
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
    // The exponent biases of fp16 and fp32 differ by 112; multiplying by 2^112 corrects this, also for subnormals.
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
  }

 private:
  static uint32_t Magnitude(uint32_t word) {
    if (word > 0x7F800000u) return 0x7E00u;
    if (word >= 0x477FF000u) return 0x7C00u;
    if (word < 0x38800000u) {
      // Subnormal fp16 numbers are multiples of 2^-24. Floats from 2^23 to 2^24 have no fraction bits, so adding 2^23
      // rounds the number of multiples to an integer, which is then in the mantissa.
      const float units = std::bit_cast<float>(word) * 0x1p24f + 0x1p23f;
      return std::bit_cast<uint32_t>(units) & 0x7FFu;
    }
    return (word + 0xFFFu + (word >> 13 & 1u) - (112u << 23)) >> 13;
  }
};

enum class ScoreFunction : uint8_t { kSoftmax = 0, kSigmoid = 1, kSqrtSoftplus = 2 };

// At which steps Megatron-Core's router rounds to the dtype D of its logits. If D is fp32, both values mean the same.
enum class Rounding : uint8_t {
  kOnce = 0,      // fp32 inside, one cast to D at the end: Megatron-Core 0.18 and later.
  kEachStep = 1,  // Scores are cast to D; gather, normalisation and scaling run in D: Megatron-Core 0.16 and 0.17.
};

// The configuration of one MoE layer's router; names in parentheses are Megatron-Core's.
struct RouterConfig {
  ScoreFunction score_function = ScoreFunction::kSoftmax;  // (moe_router_score_function)
  bool pre_softmax = false;                                // (moe_router_pre_softmax) Only with softmax.
  int32_t num_experts = 0;                                 // E
  int32_t top_k = 0;                                       // K
  double scaling_factor = 1.0;                             // c (moe_router_topk_scaling_factor); 0 counts as 1.
  Rounding rounding = Rounding::kOnce;
  // Group limit of a live choice (moe_router_num_groups, moe_router_group_topk); one group: no limit. It does not apply
  // to replayed rows and pads.
  int32_t num_groups = 1;
  int32_t group_topk = 1;
};

// Counters of router calls. Every call adds to them; nothing resets them.
struct RouterCounters {
  int64_t replayed_rows = 0;
  int64_t live_rows = 0;
  int64_t pad_rows = 0;
  // Ids >= E. They are clamped to E - 1, because a kernel cannot report an error. A value above 0 means that a buffer
  // is corrupt.
  int64_t clamped_ids = 0;
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_
