// Synthetic routes that resemble those of real models: some experts are popular, consecutive tokens often choose the
// same experts, and the choice in one layer is correlated with that in the next.
//
// Layer l has a random router W_l. For token t, its logits are popularity_l + W_l z + noise, and the row has the
// experts with the K highest logits. The latent state z has D dimensions:
//   z = a(l)·emb[token(t)] + m(l)·(b·c(t) + g·topic)
// Tokens follow Zipf's law over 3000 types, c(t) is a first-order autoregressive walk, and the topic is drawn once per
// sample. The token's weight a(l) falls to half from the first layer to the last. m(l) grows from 0.25 to 1 within the
// first quarter of the layers.
//
//   const LatentGenerator generator(Qwen3_30B_A3B(), 1);
//   GeneratedSample sample = generator.Generate(0, 512);
#ifndef TESTS_GENERATOR_LATENT_GENERATOR_H_
#define TESTS_GENERATOR_LATENT_GENERATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/generator/routes.h"

namespace routing_replay::testing {

struct LatentConfig {
  std::string name;
  int32_t layers = 0;       // MoE layers.
  int32_t num_experts = 0;  // Multiple of 4.
  int32_t top_k = 0;
  int32_t dimensions = 0;       // D
  double popularity = 0;        // Standard deviation of a layer's expert popularity.
  double token = 0;             // Weight of the token in z: a(0).
  double walk = 0;              // Weight of the walk: b.
  double topic = 0;             // Weight of the topic: g.
  double walk_coefficient = 0;  // Coefficient of the autoregressive walk, in [0, 1).
  double noise = 0;             // Standard deviation per token, layer and expert.
};

// These parameters were fitted to recorded traces: for gpt-oss-20b, Kimi-Linear and OLMoE to traces of the model
// itself, for Qwen3 to those of a related model with K = 6.
LatentConfig Qwen3_30B_A3B();  // 48 layers, E 128, K 8.
LatentConfig KimiLinear();     // 26 layers, E 256, K 8.
LatentConfig KimiK2();         // 60 layers, E 384, K 8, with Kimi-Linear's parameters.
LatentConfig Qwen3Next80B();   // 48 layers, E 512, K 10, with Kimi-Linear's parameters.
LatentConfig GptOss20B();      // 24 layers, E 32, K 4.
LatentConfig Olmoe();          // 16 layers, E 64, K 8.

struct GeneratedSample {
  std::vector<uint32_t> tokens;  // rows + 1 ids: the last sampled token has no row.
  Routes routes;                 // Ids of a row by descending logit, all different.
};

// Immutable and thread-safe. The same (config, seed, sample index) gives the same sample on every machine. If fewer
// rows are requested, they are the first rows of the longer sample.
class LatentGenerator {
 public:
  LatentGenerator(const LatentConfig& config, uint64_t seed);
  GeneratedSample Generate(int64_t sample_index, int64_t rows) const;
  const LatentConfig& config() const { return config_; }

 private:
  class Sequence;

  LatentConfig config_;
  uint64_t seed_;
  std::vector<float> weights_;     // [layers][D][E]
  std::vector<float> popularity_;  // [layers][E]
  std::vector<float> embedding_;   // [token types][D]
  std::vector<double> zipf_;       // Cumulative probability per token type.
};

// Returns `count` token ids with the generator's vocabulary and frequencies, for recorded traces that come without
// their tokens.
std::vector<uint32_t> ZipfTokens(uint64_t seed, int64_t count);

// Returns the lengths of `samples` samples in tokens. They are lognormally distributed with this median and with
// `sigma` as the standard deviation of their logarithm, and clipped to [minimum, maximum].
std::vector<int64_t> LognormalLengths(uint64_t seed, int64_t samples, double median, double sigma, int64_t minimum,
                                      int64_t maximum);

}  // namespace routing_replay::testing

#endif  // TESTS_GENERATOR_LATENT_GENERATOR_H_
