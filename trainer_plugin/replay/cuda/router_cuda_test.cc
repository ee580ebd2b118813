// Compares the router's kernels on a GPU with the CPU implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/support/cuda/router_on_device.h"
#include "tests/support/router_calls.h"
#include "trainer_plugin/replay/router_row.h"
#include "trainer_plugin/replay/row_math.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::BackwardOnDevice;
using routing_replay::testing::ForwardOnDevice;

template <typename D>
Results<D> RunOnDevice(const Inputs<D>& in) {
  Results<D> out(in.config, static_cast<int64_t>(in.states.size()));
  EXPECT_OK(ForwardOnDevice<D>(in.config, {in.logits, in.indices, in.states, in.bias},
                               {absl::MakeSpan(out.probs), absl::MakeSpan(out.map), absl::MakeSpan(out.chosen)},
                               out.counters));
  EXPECT_OK(BackwardOnDevice<D>(in.config, {in.logits, out.chosen, in.grad_probs}, absl::MakeSpan(out.grad_logits),
                                out.counters));
  return out;
}

// The largest relative error of a float that may come from the device's exp and log1p, and from its order of sums.
constexpr double kFloatError = 64 * 0x1p-24;

// The distance of neighbouring values of D at x; calculations are in float, also for double.
template <typename D>
double Ulp(double x) {
  const int digits = std::is_same_v<D, Bf16> ? 8 : std::is_same_v<D, Fp16> ? 11 : 24;
  int exponent = 0;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent, std::is_same_v<D, Fp16> ? -13 : -125) - digits);
}

// By how many units of the dtype a value may differ. If the float differs a little, the rounded value may differ by one
// unit, or by more if each step is rounded.
double Units(const RouterConfig& config) { return config.rounding == Rounding::kEachStep ? 4 : 1; }

template <typename D>
double Largest(const std::vector<D>& values, size_t begin, size_t end) {
  double largest = 0;
  for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(double{static_cast<float>(values[i])}));
  return largest;
}

// Compares row by row. The allowed error is relative to the row's largest value, or to `inputs` times `scale`, the
// values from which the row was computed: these may be larger, because gradients cancel.
template <typename D>
void ExpectNear(const char* what, const RouterConfig& config, const std::vector<D>& device, const std::vector<D>& cpu,
                const std::vector<D>& inputs, double scale, int64_t rows) {
  ASSERT_EQ(device.size(), cpu.size());
  const size_t columns = rows == 0 ? 0 : cpu.size() / rows, of_inputs = rows == 0 ? 0 : inputs.size() / rows;
  for (int64_t row = 0; row < rows; ++row) {
    const double in = scale * Largest(inputs, row * of_inputs, (row + 1) * of_inputs);
    const double out = Largest(cpu, row * columns, (row + 1) * columns);
    const double rounded = config.rounding == Rounding::kEachStep ? std::max(in, out) : out;
    const double tolerance = Units(config) * Ulp<D>(rounded) + kFloatError * in;
    for (size_t i = row * columns; i < (row + 1) * columns; ++i) {
      ASSERT_NEAR(static_cast<float>(device[i]), static_cast<float>(cpu[i]), tolerance)
          << what << " " << i << ", the row's largest is " << out;
    }
  }
}

// A live choice must be the CPU's, except between scores that differ only in their last bits.
template <typename D>
void ExpectSameChoice(const Inputs<D>& in, const std::vector<uint8_t>& device, const std::vector<uint8_t>& cpu) {
  const RouterConfig& config = in.config;
  const int32_t id_bytes = IdBytes(config);
  WithArithmetic<D>(config.rounding, [&](auto math) {
    for (int64_t row = 0; row < static_cast<int64_t>(in.states.size()); ++row) {
      const float* bias = in.bias.empty() ? nullptr : in.bias.data();
      const SelectionScores<decltype(math), D> scores(OneLane(), config, in.logits.data() + row * config.num_experts,
                                                      bias);
      for (int32_t k = 0; k < config.top_k; ++k) {
        const auto a = static_cast<int32_t>(LoadId(device.data(), id_bytes, row * config.top_k + k));
        const auto b = static_cast<int32_t>(LoadId(cpu.data(), id_bytes, row * config.top_k + k));
        if (a == b) continue;
        ASSERT_TRUE(ChoosesLive(in.states[row])) << "row " << row;
        ASSERT_LT(a, config.num_experts);
        const double largest = std::max(std::abs(scores(a)), std::abs(scores(b)));
        ASSERT_NEAR(scores(a), scores(b), 2 * (Units(config) * Ulp<D>(largest) + kFloatError * largest))
            << "row " << row << " slot " << k;
      }
    }
  });
}

template <typename D>
void ExpectAsOnCpu(const Inputs<D>& in) {
  const Results<D> device = RunOnDevice(in), cpu = RunOnCpu(in);
  ASSERT_NO_FATAL_FAILURE(ExpectSameChoice(in, device.chosen, cpu.chosen));
  EXPECT_EQ(device.counters.replayed_rows, cpu.counters.replayed_rows);
  EXPECT_EQ(device.counters.live_rows, cpu.counters.live_rows);
  EXPECT_EQ(device.counters.pad_rows, cpu.counters.pad_rows);
  EXPECT_EQ(device.counters.clamped_ids, cpu.counters.clamped_ids);
  // The device may choose other experts where scores are nearly equal. So the CPU replays the device's choice, and the
  // other results are compared for the same ids.
  Inputs<D> replay = in;
  replay.indices = device.chosen;
  replay.states.assign(in.states.size(), RowState::kReplayed);
  const Results<D> expected = RunOnCpu(replay);
  EXPECT_EQ(device.map, expected.map);
  const auto rows = static_cast<int64_t>(in.states.size());
  const double scale = std::max(1.0, in.config.scaling_factor);
  const auto check = [&](const char* what, const std::vector<D>& got, const std::vector<D>& wanted,
                         const std::vector<D>& inputs,
                         double of_inputs) { ExpectNear(what, in.config, got, wanted, inputs, of_inputs, rows); };
  ASSERT_NO_FATAL_FAILURE(check("probs", device.probs, expected.probs, expected.probs, 1));
  check("grad_logits", device.grad_logits, expected.grad_logits, in.grad_probs, scale);
}

template <typename D>
void ExpectAsOnCpuForAllConfigs() {
  std::mt19937 random(1);
  ForEachConfig([&](const RouterConfig& config, int64_t rows) {
    ExpectAsOnCpu(RandomInputs<D>(config, rows, config.score_function != ScoreFunction::kSoftmax, false, random));
  });
}

TEST(RouterCuda, FloatIsAsOnTheCpu) { ExpectAsOnCpuForAllConfigs<float>(); }
TEST(RouterCuda, DoubleIsAsOnTheCpu) { ExpectAsOnCpuForAllConfigs<double>(); }
TEST(RouterCuda, Bf16IsAsOnTheCpu) { ExpectAsOnCpuForAllConfigs<Bf16>(); }
TEST(RouterCuda, Fp16IsAsOnTheCpu) { ExpectAsOnCpuForAllConfigs<Fp16>(); }

// The rows fill many blocks; the last block is not full.
TEST(RouterCuda, ManyRowsAreAsOnTheCpu) {
  std::mt19937 random(2);
  const RouterConfig config{.score_function = ScoreFunction::kSigmoid, .num_experts = 256, .top_k = 8};
  ExpectAsOnCpu(RandomInputs<float>(config, 3001, true, false, random));
}

TEST(RouterCuda, TheSameCallGivesTheSameBits) {
  std::mt19937 random(3);
  const RouterConfig config{.pre_softmax = true, .num_experts = 384, .top_k = 8};
  const auto in = RandomInputs<Bf16>(config, 500, false, true, random);
  const Results<Bf16> one = RunOnDevice(in), two = RunOnDevice(in);
  EXPECT_EQ(Bytes(one.probs), Bytes(two.probs));
  EXPECT_EQ(one.chosen, two.chosen);
  EXPECT_EQ(Bytes(one.grad_logits), Bytes(two.grad_logits));
}

TEST(RouterCuda, NaNRanksFirstAsOnTheCpu) {
  std::mt19937 random(4);
  const RouterConfig config{.num_experts = 64, .top_k = 6, .num_groups = 8, .group_topk = 3};
  const auto in = RandomInputs<float>(config, 40, false, true, random);
  EXPECT_EQ(RunOnDevice(in).chosen, RunOnCpu(in).chosen);
}

}  // namespace
}  // namespace routing_replay::trainer
