// Compares realigning on a GPU with the CPU implementation, and captures all calls of a micro-batch in one graph.
#include <gtest/gtest.h>

#include <random>

#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/replay_cuda.h"
#include "routing_replay/trainer/router.h"
#include "tests/support/cuda/device_array.h"
#include "tests/support/realign_scenario.h"
#include "tests/support/router_calls.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::CheckCuda;
using routing_replay::testing::DeviceArray;
using routing_replay::testing::DeviceCounters;

std::vector<uint8_t> Packed(const BufferLayout& layout, const RealignPlan& plan) {
  std::vector<uint8_t> packed(SizeOfPackedPlan(layout, plan).bytes);
  EXPECT_OK(PackPlan(layout, plan, absl::MakeSpan(packed)));
  return packed;
}

void ExpectRealigned(const Scenario& s, std::mt19937& random) {
  ASSERT_OK_AND_ASSIGN(const RealignPlan plan, s.Plan());
  std::vector<uint8_t> indices(s.layout.bytes());
  std::vector<RowState> states(s.layout.rows());
  ASSERT_OK(Realign(s.layout, plan, s.staging, absl::MakeSpan(indices), absl::MakeSpan(states)));

  const DeviceArray<uint8_t> packed(Packed(s.layout, plan)), staging(s.staging);
  DeviceArray<uint8_t> device_indices(indices.size());
  DeviceArray<RowState> device_states(states.size() + 1);  // Never null.
  device_indices.Fill(0xCD), device_states.Fill(0xCD);
  const int64_t usual = SizeOfPackedPlan(s.layout, plan).units;
  ASSERT_OK(LaunchRealign({.packed_plan = packed.data(),
                           .staging = staging.data(),
                           .indices = device_indices.data(),
                           .states = device_states.data(),
                           .units = Pick(random, 0, 1) ? usual : Pick(random, 0, static_cast<int>(2 * usual))},
                          nullptr));
  EXPECT_EQ(device_indices.Download(), indices);
  std::vector<RowState> got = device_states.Download();
  EXPECT_EQ(static_cast<uint8_t>(got.back()), 0xCD);
  got.pop_back();
  EXPECT_EQ(got, states);
}

TEST(RealignCuda, RandomPiecesAndMapsAreAsOnTheCpu) {
  std::mt19937 random(1);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(absl::StrCat("round ", round));
    ExpectRealigned(RandomScenario(random), random);
    if (HasFailure()) return;
  }
}

// The buffers of a micro-batch of one layer, at fixed addresses.
struct LayerBuffers {
  RouterConfig config{.num_experts = 128, .top_k = 8};
  int64_t rows;
  DeviceArray<uint8_t> packed, staging, indices, map;
  DeviceArray<RowState> states;
  DeviceArray<float> logits, grad_probs, probs, grad_logits;
  DeviceCounters<RouterCounters> counters;

  explicit LayerBuffers(int64_t rows)
      : rows(rows),
        packed(size_t{1} << 16),
        staging(static_cast<size_t>(rows * 8)),
        indices(static_cast<size_t>(rows * 8)),
        map(static_cast<size_t>(rows * 128)),
        states(static_cast<size_t>(rows)),
        logits(map.size()),
        grad_probs(map.size()),
        probs(map.size()),
        grad_logits(map.size()) {}

  void Launch(cudaStream_t stream) {
    ASSERT_OK(LaunchRealign({.packed_plan = packed.data(),
                             .staging = staging.data(),
                             .indices = indices.data(),
                             .states = states.data(),
                             .units = 8},
                            stream));
    ASSERT_OK(LaunchRouterForward(config,
                                  {.rows = rows,
                                   .logits = logits.data(),
                                   .indices = indices.data(),
                                   .states = states.data(),
                                   .probs = probs.data(),
                                   .routing_map = map.data(),
                                   .chosen = indices.data(),
                                   .counters = counters.data()},
                                  stream));
    ASSERT_OK(LaunchRouterBackward(config,
                                   {.rows = rows,
                                    .logits = logits.data(),
                                    .chosen = indices.data(),
                                    .grad_probs = grad_probs.data(),
                                    .grad_logits = grad_logits.data()},
                                   stream));
  }

  // Another micro-batch: `replayed` rows from one sequence, then a token without a route, then pads.
  void Upload(int64_t replayed, std::mt19937& random) {
    const auto layout = BufferLayout::Create(Geometry::Uniform(1, 128, 8), {.ordinals = {0}, .rows = rows});
    std::vector<LocalRow> row_map;
    for (int64_t i = 0; i < rows; ++i) {
      const RowState state = i < replayed    ? RowState::kReplayed
                             : i == replayed ? RowState::kUnrecorded
                                             : RowState::kPad;
      row_map.push_back({0, static_cast<int32_t>(i), state});
    }
    const std::vector<StagedPiece> pieces = {{.layer_count = 1, .rows = {0, replayed}}};
    const std::vector<std::vector<RowRange>> unrecorded(1);
    const ShownRows shown(row_map);
    const auto plan = PlanRealign(*layout, {.pieces = pieces, .rows = shown, .unrecorded = unrecorded});
    ASSERT_OK(plan);
    packed.Upload(Packed(*layout, *plan));
    const auto in = RandomInputs<float>(config, rows, false, false, random);
    staging.Upload(in.indices);
    logits.Upload(in.logits);
    grad_probs.Upload(in.grad_probs);
  }
};

TEST(GraphCuda, ACapturedMicroBatchTakesTheNextOnesAtTheSameAddresses) {
  std::mt19937 random(5);
  LayerBuffers buffers(600);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CheckCuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  // CUDA loads a kernel at its first launch, which is not allowed during a capture.
  ASSERT_NO_FATAL_FAILURE(buffers.Upload(1, random));
  ASSERT_NO_FATAL_FAILURE(buffers.Launch(stream));
  CheckCuda(cudaStreamSynchronize(stream), "first launches");
  // A call that waits, allocates or creates a stream would end the capture with an error.
  CheckCuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "begin capture");
  ASSERT_NO_FATAL_FAILURE(buffers.Launch(stream));
  CheckCuda(cudaStreamEndCapture(stream, &graph), "end capture");
  CheckCuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  for (int64_t replayed : {500, 37, 599}) {
    ASSERT_NO_FATAL_FAILURE(buffers.Upload(replayed, random));
    ASSERT_NO_FATAL_FAILURE(buffers.Launch(stream));
    CheckCuda(cudaStreamSynchronize(stream), "direct");
    const auto probs = buffers.probs.Download(), grads = buffers.grad_logits.Download();
    const auto map = buffers.map.Download(), indices = buffers.indices.Download();
    buffers.probs.Fill(0xCD), buffers.grad_logits.Fill(0xCD), buffers.map.Fill(0xCD), buffers.indices.Fill(0xCD);
    const RouterCounters before = buffers.counters.Read();
    CheckCuda(cudaGraphLaunch(executable, stream), "launch");
    CheckCuda(cudaStreamSynchronize(stream), "graph");
    EXPECT_EQ(buffers.probs.Download(), probs);
    EXPECT_EQ(buffers.grad_logits.Download(), grads);
    EXPECT_EQ(buffers.map.Download(), map);
    EXPECT_EQ(buffers.indices.Download(), indices);
    EXPECT_EQ(buffers.counters.Read().replayed_rows - before.replayed_rows, replayed);
    EXPECT_EQ(buffers.counters.Read().live_rows - before.live_rows, 1);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace routing_replay::trainer
