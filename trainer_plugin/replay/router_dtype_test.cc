// Compares router replay on logits of every dtype, in both kinds of rounding, with the double-precision reference.
#include <cmath>
#include <limits>
#include <numeric>

#include "routing_replay/trainer/router.h"
#include "tests/reference/router_reference.h"
#include "tests/support/status_matchers.h"
#include "trainer_plugin/replay/compact_id.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::ReferenceGradient;
using routing_replay::testing::ReferenceProbs;

constexpr int64_t kRows = 12;

std::vector<RouterConfig> Configs() {
  std::vector<RouterConfig> configs;
  for (const auto& [experts, k] : std::vector<std::pair<int, int>>{{8, 1}, {8, 2}, {64, 6}, {128, 8}, {384, 8}}) {
    for (const double scale : {1.0, 2.5}) {
      RouterConfig config{.num_experts = experts, .top_k = k, .scaling_factor = scale};
      configs.push_back(config);
      config.pre_softmax = true;
      configs.push_back(config);
      config.pre_softmax = false;
      config.score_function = ScoreFunction::kSigmoid;
      configs.push_back(config);
      config.score_function = ScoreFunction::kSqrtSoftplus;
      configs.push_back(config);
    }
  }
  return configs;
}

// One forward and backward call on random tensors.
template <typename D>
struct Call {
  std::vector<D> logits, grad_probs, probs, grad_logits;
  std::vector<uint8_t> indices, map;

  Call(const RouterConfig& config, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    const int64_t size = kRows * config.num_experts;
    for (int64_t i = 0; i < size; ++i) {
      logits.push_back(D(normal(random)));
      grad_probs.push_back(D(normal(random)));
    }
    probs.resize(size);
    grad_logits.resize(size);
    map.resize(size);
    indices.resize(kRows * config.top_k * IdBytes(config));
    std::vector<int> ids(config.num_experts);
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t row = 0; row < kRows; ++row) {
      std::shuffle(ids.begin(), ids.end(), random);
      for (int k = 0; k < config.top_k; ++k) StoreId(indices.data(), IdBytes(config), row * config.top_k + k, ids[k]);
    }
    const std::vector<RowState> states(kRows, RowState::kReplayed);
    RouterCounters counters;
    EXPECT_OK(RouterReplayForward<D>(config, {.logits = logits, .indices = indices, .states = states},
                                     {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(map)}, counters));
    EXPECT_OK(RouterReplayBackward<D>(config, {.logits = logits, .chosen = indices, .grad_probs = grad_probs},
                                      absl::MakeSpan(grad_logits), counters));
  }

  static std::vector<double> Row(const RouterConfig& config, const std::vector<D>& tensor, int64_t row) {
    std::vector<double> out;
    for (int e = 0; e < config.num_experts; ++e) {
      if constexpr (std::is_same_v<D, double>) {
        out.push_back(tensor[row * config.num_experts + e]);
      } else {
        out.push_back(static_cast<float>(tensor[row * config.num_experts + e]));
      }
    }
    return out;
  }
};

// Compares probabilities and gradients with the reference. `tolerance` is relative to the largest value of the row.
template <typename D>
void ExpectAsReference(Rounding rounding, double tolerance) {
  uint32_t seed = 1;
  for (RouterConfig config : Configs()) {
    config.rounding = rounding;
    const Call<D> call(config, ++seed);
    for (int64_t row = 0; row < kRows; ++row) {
      SCOPED_TRACE(absl::StrCat("E ", config.num_experts, " K ", config.top_k, " function ",
                                static_cast<int>(config.score_function), " row ", row));
      std::vector<int> ids;
      for (int k = 0; k < config.top_k; ++k) {
        ids.push_back(static_cast<int>(LoadId(call.indices.data(), IdBytes(config), row * config.top_k + k)));
      }
      const auto logits = call.Row(config, call.logits, row);
      const auto grad = call.Row(config, call.grad_probs, row);
      std::vector<double> probs(config.num_experts, 0);
      const std::vector<double> chosen = ReferenceProbs(config, logits, ids);
      for (int k = 0; k < config.top_k; ++k) probs[ids[k]] = chosen[k];
      const std::vector<double> grad_logits = ReferenceGradient(config, logits, ids, grad);
      const auto ours = call.Row(config, call.probs, row), our_grad = call.Row(config, call.grad_logits, row);
      const double largest = std::max(1.0, *std::max_element(probs.begin(), probs.end()));
      // Gradients are differences that cancel: the tolerance is relative to the incoming values.
      const double grad_scale = 10 * config.scaling_factor;
      for (int e = 0; e < config.num_experts; ++e) {
        ASSERT_NEAR(ours[e], probs[e], tolerance * largest);
        ASSERT_NEAR(our_grad[e], grad_logits[e], tolerance * grad_scale);
      }
    }
  }
}

TEST(RouterDtypeTest, FloatIsAsTheReference) { ExpectAsReference<float>(Rounding::kOnce, 2e-6); }
TEST(RouterDtypeTest, DoubleIsAsTheReference) {
  ExpectAsReference<double>(Rounding::kOnce, 2e-6);
  ExpectAsReference<double>(Rounding::kEachStep, 2e-6);
}
TEST(RouterDtypeTest, Bf16IsAsTheReference) {
  ExpectAsReference<Bf16>(Rounding::kOnce, 1.0 / 256);
  ExpectAsReference<Bf16>(Rounding::kEachStep, 4.0 / 256);
}
TEST(RouterDtypeTest, Fp16IsAsTheReference) {
  ExpectAsReference<Fp16>(Rounding::kOnce, 1.0 / 2048);
  ExpectAsReference<Fp16>(Rounding::kEachStep, 4.0 / 2048);
}

TEST(RouterDtypeTest, RoundingIsTheSameForFloat) {
  for (RouterConfig config : Configs()) {
    const Call<float> once(config, 5);
    config.rounding = Rounding::kEachStep;
    const Call<float> stepped(config, 5);
    EXPECT_EQ(once.probs, stepped.probs);
    EXPECT_EQ(once.grad_logits, stepped.grad_logits);
  }
}

// The sum of two sigmoids is as small as the 1e-20 that Megatron adds to it. torch adds the double 1e-20, not the
// nearest float.
TEST(RouterDtypeTest, SmallDoublesKeepTheirDigits) {
  const RouterConfig config{
      .score_function = ScoreFunction::kSigmoid, .num_experts = 2, .top_k = 2, .rounding = Rounding::kEachStep};
  const std::vector<double> logits = {-46.05, -46.05};
  const std::vector<uint8_t> indices = {0, 1};
  const std::vector<RowState> states = {RowState::kReplayed};
  std::vector<double> probs(2);
  std::vector<uint8_t> map(2);
  RouterCounters counters;
  ASSERT_OK(RouterReplayForward<double>(config, {.logits = logits, .indices = indices, .states = states},
                                        {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(map)},
                                        counters));
  const double a = 1.0f / (1.0f + std::exp(46.05f));
  EXPECT_NEAR(probs[0] / (a / (2 * a + 1e-20)), 1, 1e-14);
}

// A probability becomes 0 where the dtype cannot represent it, not where float cannot.
TEST(RouterDtypeTest, ZeroIsZeroInTheDtype) {
  const RouterConfig config{.num_experts = 2, .top_k = 2, .scaling_factor = 0.01, .rounding = Rounding::kEachStep};
  const std::vector<double> logits = {0, -103};
  const std::vector<uint8_t> indices = {0, 1};
  const std::vector<RowState> states = {RowState::kReplayed};
  std::vector<double> probs(2);
  std::vector<uint8_t> map(2);
  RouterCounters counters;
  ASSERT_OK(RouterReplayForward<double>(config, {.logits = logits, .indices = indices, .states = states},
                                        {.probs = absl::MakeSpan(probs), .routing_map = absl::MakeSpan(map)},
                                        counters));
  EXPECT_GT(probs[1], 0);
}

TEST(Bf16Test, RoundsToTheNearestTiesToEven) {
  const auto bits = [](float value) { return Bf16(value).bits; };
  EXPECT_EQ(bits(1.0f), 0x3F80);
  EXPECT_EQ(bits(1.0f + 1.0f / 256), 0x3F80);  // Halfway between two values: rounds down to the even one.
  EXPECT_EQ(bits(1.0f + 3.0f / 256), 0x3F82);  // Halfway: rounds up to the even one.
  EXPECT_EQ(bits(1.0f + 1.1f / 256), 0x3F81);  // More than halfway.
  EXPECT_EQ(bits(-0.0f), 0x8000);
  EXPECT_EQ(bits(std::numeric_limits<float>::max()), 0x7F80);  // Rounds to infinity, as in torch.
  EXPECT_EQ(bits(-std::numeric_limits<float>::infinity()), 0xFF80);
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16(std::numeric_limits<float>::signaling_NaN()))));
  for (uint32_t word = 0; word <= 0xFFFF; ++word) {
    Bf16 value;
    value.bits = static_cast<uint16_t>(word);
    if (std::isnan(static_cast<float>(value))) continue;
    EXPECT_EQ(Bf16(static_cast<float>(value)).bits, word);
  }
}

// Every finite half, and values between it and the next one: below the middle, the middle, above it.
TEST(Fp16Test, RoundsToTheNearestTiesToEven) {
  const auto at = [](uint32_t word) {
    Fp16 value;
    value.bits = static_cast<uint16_t>(word);
    return static_cast<float>(value);
  };
  EXPECT_EQ(at(0x3C00), 1.0f);
  EXPECT_EQ(at(0x0001), 0x1p-24f);
  EXPECT_EQ(at(0x0400), 0x1p-14f);
  EXPECT_EQ(at(0x7BFF), 65504.0f);
  EXPECT_EQ(at(0xFC00), -std::numeric_limits<float>::infinity());
  for (uint32_t word = 0; word < 0x7BFF; ++word) {
    const float low = at(word), high = at(word + 1), middle = (low + high) / 2;
    ASSERT_LT(low, high);
    ASSERT_EQ(Fp16(low).bits, word);
    ASSERT_EQ(Fp16(-low).bits, word | 0x8000);
    ASSERT_EQ(Fp16(std::nextafter(middle, low)).bits, word);
    ASSERT_EQ(Fp16(middle).bits, word + (word & 1));
    ASSERT_EQ(Fp16(std::nextafter(middle, high)).bits, word + 1);
  }
  EXPECT_EQ(Fp16(65519.0f).bits, 0x7BFF);
  EXPECT_EQ(Fp16(65520.0f).bits, 0x7C00);
  EXPECT_EQ(Fp16(-std::numeric_limits<float>::infinity()).bits, 0xFC00);
  EXPECT_TRUE(std::isnan(static_cast<float>(Fp16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace routing_replay::trainer
