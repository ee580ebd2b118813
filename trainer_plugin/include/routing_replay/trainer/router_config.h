// The plain data of a router: dtypes, what a MoE layer computes, and the counters of its calls. Includes only standard
// headers, because CUDA code includes it, too, and kernels add to counters in device memory.
#ifndef ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_
#define ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_

#include <bit>
#include <cstdint>

namespace routing_replay::trainer {

enum class Dtype : uint8_t { kFloat32 = 0, kFloat64 = 1, kBfloat16 = 2, kFloat16 = 3 };

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
    // The biases of the exponents differ by 112; multiplying by 2^112 adds that, for subnormal numbers too.
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
  }

 private:
  static uint32_t Magnitude(uint32_t word) {
    if (word > 0x7F800000u) return 0x7E00u;
    if (word >= 0x477FF000u) return 0x7C00u;
    if (word < 0x38800000u) {
      // Subnormal: multiples of 2^-24. Adding 2^23 of them rounds to a whole number, which is then in the mantissa.
      const float units = std::bit_cast<float>(word) * 0x1p24f + 0x1p23f;
      return std::bit_cast<uint32_t>(units) & 0x7FFu;
    }
    return (word + 0xFFFu + (word >> 13 & 1u) - (112u << 23)) >> 13;
  }
};

enum class ScoreFunction : uint8_t { kSoftmax = 0, kSigmoid = 1, kSqrtSoftplus = 2 };

// Where Megatron-Core's router rounds to the dtype D of its logits. Both are the same where D is fp32.
enum class Rounding : uint8_t {
  kOnce = 0,      // fp32 inside, one cast to D at the end: Megatron-Core 0.18 and later.
  kEachStep = 1,  // Scores are cast to D; gather, normalisation and scaling run in D: Megatron-Core 0.16 and 0.17.
};

// One MoE layer's router; names in parentheses are Megatron-Core's.
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

// Added to by every call, never reset.
struct RouterCounters {
  int64_t replayed_rows = 0;
  int64_t live_rows = 0;
  int64_t pad_rows = 0;
  // Ids >= E. They are clamped to E - 1, because a kernel cannot stop; anything but 0 means a broken buffer.
  int64_t clamped_ids = 0;
  // Replayed ids whose probability came out as 0: dispatchers that derive ids from probabilities lose that expert.
  int64_t zero_probabilities = 0;
};

// For one layer. Added to by every call, never reset.
struct CompareCounters {
  int64_t rows = 0;            // Rows compared.
  int64_t different_rows = 0;  // Rows whose sets differ.
  int64_t disjoint_rows = 0;   // Rows whose sets have no expert in common: typical of rows shifted by one.
  int64_t common_ids = 0;      // Σ of the experts in common; rows · K where all are equal.
};

}  // namespace routing_replay::trainer

#endif  // ROUTING_REPLAY_TRAINER_ROUTER_CONFIG_H_
