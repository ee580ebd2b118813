// The CUDA kernels' router code, on the lanes of a warp that runs on the CPU, gives the same bits as the CPU
// implementation.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/fiber_warp.h"
#include "tests/support/router_calls.h"
#include "trainer_plugin/replay/router_row.h"
#include "trainer_plugin/replay/warp_rows.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::FiberLane;
using routing_replay::testing::FiberWarp;

// Computes each row forward and backward. `run` gets a function(lanes, sync) for each row and calls it, on a warp once
// in each lane. `sync` makes what all lanes wrote in the forward part visible to the backward part.
template <typename D, typename Run>
Results<D> ByRows(const Inputs<D>& in, Run run) {
  Results<D> out(in.config, static_cast<int64_t>(in.states.size()));
  const RouterForwardTensors<D> forward{.id_bytes = IdBytes(in.config),
                                        .logits = in.logits.data(),
                                        .indices = in.indices.data(),
                                        .states = in.states.data(),
                                        .expert_bias = in.bias.empty() ? nullptr : in.bias.data(),
                                        .probs = out.probs.data(),
                                        .routing_map = out.map.data(),
                                        .chosen = out.chosen.data()};
  const RouterBackwardTensors<D> backward{.id_bytes = IdBytes(in.config),
                                          .logits = in.logits.data(),
                                          .chosen = out.chosen.data(),
                                          .grad_probs = in.grad_probs.data(),
                                          .grad_logits = out.grad_logits.data()};
  WithArithmetic<D>(in.config.rounding, [&](auto math) {
    using Math = decltype(math);
    for (int64_t row = 0; row < static_cast<int64_t>(in.states.size()); ++row) {
      ++RowsOfState(out.counters, in.states[row]);
      run([&](const auto& lanes, auto sync) {
        const int32_t clamped = ForwardRow<Math>(lanes, in.config, forward, row);
        sync();
        out.counters.clamped_ids += clamped + BackwardRow<Math>(lanes, in.config, backward, row);
      });
    }
  });
  return out;
}

template <typename D>
Results<D> OnWarp(const Inputs<D>& in) {
  alignas(kTileAlignment) uint8_t tile[kTileBytes];
  FiberWarp warp;
  return ByRows(in, [&](const auto& row) {
    warp.Run([&](const FiberLane& lane) { row(WarpLanes<FiberLane>(lane, tile), [&] { lane.Sync(); }); });
  });
}

// Like OneLane, but if several slots have the same id, the first slot counts, not the last.
struct FirstSlotStays : OneLane {
  template <typename T, typename Fill>
  void WriteRow(T* out, int32_t n, Fill&& fill, const uint16_t* ids, const T* values, int32_t k) const {
    const std::vector<uint16_t> last_ids(std::make_reverse_iterator(ids + k), std::make_reverse_iterator(ids));
    const std::vector<T> last_values(std::make_reverse_iterator(values + k), std::make_reverse_iterator(values));
    OneLane().WriteRow(out, n, std::forward<Fill>(fill), last_ids.data(), last_values.data(), k);
  }
};

template <typename D>
void ExpectSame(const Inputs<D>& in) {
  const Results<D> cpu = RunOnCpu(in), warp = OnWarp(in);
  EXPECT_EQ(Bytes(warp.probs), Bytes(cpu.probs));
  EXPECT_EQ(warp.map, cpu.map);
  EXPECT_EQ(warp.chosen, cpu.chosen);
  EXPECT_EQ(Bytes(warp.grad_logits), Bytes(cpu.grad_logits));
  EXPECT_EQ(warp.counters.replayed_rows, cpu.counters.replayed_rows);
  EXPECT_EQ(warp.counters.live_rows, cpu.counters.live_rows);
  EXPECT_EQ(warp.counters.pad_rows, cpu.counters.pad_rows);
  EXPECT_EQ(warp.counters.clamped_ids, cpu.counters.clamped_ids);
}

template <typename D>
void ExpectSameForAllConfigs() {
  std::mt19937 random(1);
  ForEachConfig([&](const RouterConfig& config, int64_t rows) {
    ExpectSame(RandomInputs<D>(config, rows, config.score_function != ScoreFunction::kSoftmax, true, random));
  });
}

TEST(WarpRouter, FloatRowsAreTheCpus) { ExpectSameForAllConfigs<float>(); }
TEST(WarpRouter, DoubleRowsAreTheCpus) { ExpectSameForAllConfigs<double>(); }
TEST(WarpRouter, Bf16RowsAreTheCpus) { ExpectSameForAllConfigs<Bf16>(); }
TEST(WarpRouter, Fp16RowsAreTheCpus) { ExpectSameForAllConfigs<Fp16>(); }

// Damaged and clamped records have rows with an id twice. Both slots of this id have the same value, so it does not
// matter which lane writes last.
TEST(WarpRouter, RowsWithAnIdTwiceAreTheSameWhicheverSlotStays) {
  std::mt19937 random(3);
  ForEachConfig([&](const RouterConfig& config, int64_t all_rows) {
    if (config.top_k < 2) return;
    const int64_t rows = std::min<int64_t>(all_rows, 3);
    auto in = RandomInputs<float>(config, rows, config.score_function != ScoreFunction::kSoftmax, true, random);
    const int64_t bytes = IdBytes(config), row_bytes = config.top_k * bytes;
    for (int64_t row = 0; row < rows; ++row) {
      const auto first = in.indices.begin() + row * row_bytes;
      std::copy_n(first, bytes, first + row_bytes - bytes);
    }
    ExpectSame(in);
    const Results<float> last = RunOnCpu(in);
    const Results<float> first = ByRows(in, [](const auto& row) { row(FirstSlotStays(), [] {}); });
    EXPECT_EQ(Bytes(first.probs), Bytes(last.probs));
    EXPECT_EQ(first.map, last.map);
    EXPECT_EQ(Bytes(first.grad_logits), Bytes(last.grad_logits));
  });
}

// With the largest number of experts, a row has many tiles, the last one incomplete, and its scores do not fit into one
// tile.
TEST(WarpRouter, RowsOfTheMostExpertsAreTheCpus) {
  std::mt19937 random(2);
  for (int32_t groups : {1, 15}) {
    const RouterConfig config{.score_function = ScoreFunction::kSigmoid,
                              .num_experts = 65535,
                              .top_k = 8,
                              .num_groups = groups,
                              .group_topk = groups == 1 ? 1 : 4};
    ExpectSame(RandomInputs<Bf16>(config, 3, true, true, random));
  }
}

}  // namespace
}  // namespace routing_replay::trainer
