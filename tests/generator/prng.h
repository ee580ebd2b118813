// Random numbers that are the same on every machine and with every standard library: xoshiro256** seeded by SplitMix64
// (Blackman and Vigna, public domain algorithms), and normal numbers without libm.
#ifndef TESTS_GENERATOR_PRNG_H_
#define TESTS_GENERATOR_PRNG_H_

#include <bit>
#include <cstdint>

namespace routing_replay::testing {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

// Derives a seed for part number `index` of an object from the seed of the object. Different parts get unrelated
// streams of random numbers.
inline uint64_t DeriveSeed(uint64_t seed, uint64_t index) {
  SplitMix64 mix(seed);
  return SplitMix64(mix.Next() ^ (index * 0xD1342543DE82EF95u + 1)).Next();
}

// A UniformRandomBitGenerator. Not thread-safe.
class Prng {
 public:
  using result_type = uint64_t;

  explicit Prng(uint64_t seed) {
    SplitMix64 mix(seed);
    for (uint64_t& word : state_) word = mix.Next();
  }
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return UINT64_MAX; }

  uint64_t operator()() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Returns a number in [0, bound); requires bound > 0. The bias of the modulo is below bound / 2^64.
  uint64_t Below(uint64_t bound) { return (*this)() % bound; }
  // In [0, 1).
  double Uniform() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }
  // Returns a nearly normal number with mean 0 and variance 1: the scaled sum of eight 16-bit numbers, which is within
  // ±4.9. The sum is exact in double, so all machines get the same number.
  double Normal() {
    int64_t sum = 0;
    for (int draw = 0; draw < 2; ++draw) {
      for (uint64_t word = (*this)(); word != 0; word >>= 16) sum += static_cast<int64_t>(word & 0xFFFF);
    }
    constexpr double kMean = 8 * 65535 / 2.0;
    constexpr double kInverseDeviation = 1 / 53509.97;  // sqrt(8 (65536² − 1) / 12)
    return (static_cast<double>(sum) - kMean) * kInverseDeviation;
  }

 private:
  uint64_t state_[4];
};

}  // namespace routing_replay::testing

#endif  // TESTS_GENERATOR_PRNG_H_
