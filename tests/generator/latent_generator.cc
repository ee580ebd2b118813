#include "tests/generator/latent_generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/generator/prng.h"

namespace routing_replay::testing {
namespace {

constexpr int32_t kTokenTypes = 3000;
constexpr double kZipfExponent = 1.05;
// Each seed has several independent streams of random numbers; these are their numbers for DeriveSeed.
constexpr uint64_t kModelStream = 0, kTextStream = 1, kNoiseStream = 2;

std::vector<float> Normals(Prng& prng, size_t count, double deviation) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(prng.Normal() * deviation);
  return values;
}

std::vector<double> ZipfCumulative() {
  std::vector<double> cumulative(kTokenTypes);
  double sum = 0;
  for (int32_t rank = 0; rank < kTokenTypes; ++rank) cumulative[rank] = sum += std::pow(rank + 1, -kZipfExponent);
  for (double& value : cumulative) value /= sum;
  return cumulative;
}

uint32_t DrawToken(const std::vector<double>& cumulative, Prng& prng) {
  const auto found = std::lower_bound(cumulative.begin(), cumulative.end() - 1, prng.Uniform());
  return static_cast<uint32_t>(found - cumulative.begin());
}

// One independent xorshift32 generator per expert, so that the loop over experts has no dependences.
class NoiseLanes {
 public:
  NoiseLanes(uint64_t seed, int32_t lanes) : states_(lanes) {
    Prng prng(seed);
    for (uint32_t& state : states_) state = static_cast<uint32_t>(prng()) | 1u;
  }

  // Adds noise of this standard deviation: a sum of four bytes, which is nearly normal.
  void AddTo(float* logits, float deviation) {
    constexpr float kMean = 4 * 255 / 2.0f;
    const float scale = deviation / 147.8005f;  // sqrt(4 (256² − 1) / 12)
    const size_t lanes = states_.size();
    for (size_t i = 0; i < lanes; ++i) {
      uint32_t x = states_[i];
      x ^= x << 13;
      x ^= x >> 17;
      x ^= x << 5;
      states_[i] = x;
      const auto sum = static_cast<int32_t>((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24));
      logits[i] += (static_cast<float>(sum) - kMean) * scale;
    }
  }

 private:
  std::vector<uint32_t> states_;
};

// Writes the ids of the k highest logits to `ids`, highest first. Of equal logits, the one with the lower id comes
// first.
void TopK(const std::vector<float>& logits, int32_t k, uint16_t* ids) {
  float best[64];
  int32_t held = 0;
  for (int32_t expert = 0; expert < static_cast<int32_t>(logits.size()); ++expert) {
    const float logit = logits[expert];
    if (held == k && logit <= best[k - 1]) continue;
    int32_t slot = held < k ? held++ : k - 1;
    for (; slot > 0 && best[slot - 1] < logit; --slot) {
      best[slot] = best[slot - 1];
      ids[slot] = ids[slot - 1];
    }
    best[slot] = logit;
    ids[slot] = static_cast<uint16_t>(expert);
  }
}

}  // namespace

LatentConfig Qwen3_30B_A3B() { return {"Qwen3-30B-A3B", 48, 128, 8, 6, .05, .84, .78, 1.1, .52, .26}; }
LatentConfig KimiLinear() { return {"Kimi-Linear-48B", 26, 256, 8, 6, 1.27, 1.14, 1.79, .66, .72, .66}; }
LatentConfig KimiK2() { return {"Kimi-K2", 60, 384, 8, 6, 1.27, 1.14, 1.79, .66, .72, .66}; }
LatentConfig Qwen3Next80B() { return {"Qwen3-Next-80B", 48, 512, 10, 6, 1.27, 1.14, 1.79, .66, .72, .66}; }
LatentConfig GptOss20B() { return {"gpt-oss-20b", 24, 32, 4, 8, .92, 1.51, 1.46, 1.61, .59, .13}; }
LatentConfig Olmoe() { return {"OLMoE-1B-7B", 16, 64, 8, 12, 1.05, 1.36, 1.66, .51, .65, .14}; }

// The state of one sample while it is generated.
class LatentGenerator::Sequence {
 public:
  Sequence(const LatentGenerator& model, int64_t sample_index)
      : model_(model),
        text_(DeriveSeed(DeriveSeed(model.seed_, kTextStream), sample_index)),
        noise_(DeriveSeed(DeriveSeed(model.seed_, kNoiseStream), sample_index), model.config_.num_experts),
        topic_(Normals(text_, model.config_.dimensions, model.config_.topic)),
        walk_(Normals(text_, model.config_.dimensions, 1)),
        logits_(model.config_.num_experts) {}

  uint32_t NextToken() { return DrawToken(model_.zipf_, text_); }

  // Writes the row of `token` to `ids` [layers][K], and moves the walk c(t) on by one step.
  void NextRow(uint32_t token, uint16_t* ids) {
    const LatentConfig& config = model_.config_;
    for (int32_t layer = 0; layer < config.layers; ++layer) {
      Logits(token, layer);
      TopK(logits_, config.top_k, ids + layer * config.top_k);
    }
    const double rho = config.walk_coefficient;
    const double innovation = std::sqrt(1 - rho * rho);
    for (float& value : walk_) value = static_cast<float>(rho * value + innovation * text_.Normal());
  }

 private:
  void Logits(uint32_t token, int32_t layer) {
    const LatentConfig& config = model_.config_;
    const int32_t experts = config.num_experts;
    const double depth = config.layers > 1 ? static_cast<double>(layer) / (config.layers - 1) : 0;
    const auto token_weight = static_cast<float>(config.token * (1 - depth / 2));
    const auto context_weight = static_cast<float>(std::min(1.0, .25 + 3 * depth));
    const auto walk_weight = static_cast<float>(config.walk);
    std::copy_n(model_.popularity_.begin() + layer * experts, experts, logits_.begin());
    for (int32_t d = 0; d < config.dimensions; ++d) {
      const float z = token_weight * model_.embedding_[token * config.dimensions + d] +
                      context_weight * (walk_weight * walk_[d] + topic_[d]);
      const float* weights = &model_.weights_[(layer * config.dimensions + d) * experts];
      for (int32_t expert = 0; expert < experts; ++expert) logits_[expert] += z * weights[expert];
    }
    noise_.AddTo(logits_.data(), static_cast<float>(config.noise));
  }

  const LatentGenerator& model_;
  Prng text_;
  NoiseLanes noise_;
  std::vector<float> topic_;
  std::vector<float> walk_;
  std::vector<float> logits_;
};

LatentGenerator::LatentGenerator(const LatentConfig& config, uint64_t seed)
    : config_(config), seed_(seed), zipf_(ZipfCumulative()) {
  Prng prng(DeriveSeed(seed, kModelStream));
  const size_t cells = static_cast<size_t>(config.layers) * config.num_experts;
  popularity_ = Normals(prng, cells, config.popularity);
  weights_ = Normals(prng, cells * config.dimensions, 1 / std::sqrt(config.dimensions));
  embedding_ = Normals(prng, static_cast<size_t>(kTokenTypes) * config.dimensions, 1);
}

GeneratedSample LatentGenerator::Generate(int64_t sample_index, int64_t rows) const {
  GeneratedSample sample;
  const int64_t row_ids = int64_t{config_.layers} * config_.top_k;
  sample.routes = {rows, config_.layers, config_.top_k, config_.num_experts, std::vector<uint16_t>(rows * row_ids)};
  sample.tokens.reserve(rows + 1);
  Sequence sequence(*this, sample_index);
  for (int64_t row = 0; row < rows; ++row) {
    sample.tokens.push_back(sequence.NextToken());
    sequence.NextRow(sample.tokens.back(), &sample.routes.ids[row * row_ids]);
  }
  sample.tokens.push_back(sequence.NextToken());
  return sample;
}

std::vector<uint32_t> ZipfTokens(uint64_t seed, int64_t count) {
  const std::vector<double> cumulative = ZipfCumulative();
  Prng prng(seed);
  std::vector<uint32_t> tokens(count);
  for (uint32_t& token : tokens) token = DrawToken(cumulative, prng);
  return tokens;
}

std::vector<int64_t> LognormalLengths(uint64_t seed, int64_t samples, double median, double sigma, int64_t minimum,
                                      int64_t maximum) {
  Prng prng(seed);
  std::vector<int64_t> lengths(samples);
  for (int64_t& length : lengths) {
    length = std::clamp<int64_t>(std::llround(median * std::exp(sigma * prng.Normal())), minimum, maximum);
  }
  return lengths;
}

}  // namespace routing_replay::testing
