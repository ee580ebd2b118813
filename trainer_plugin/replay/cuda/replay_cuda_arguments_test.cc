// Launches that are rejected before they reach a GPU; the test needs none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "routing_replay/trainer/realign.h"
#include "routing_replay/trainer/replay_cuda.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

using routing_replay::testing::Fails;

constexpr RouterConfig kConfig{.num_experts = 8, .top_k = 2};

// Addresses that are never read.
template <typename T>
T* Somewhere() {
  return reinterpret_cast<T*>(uintptr_t{1} << 20);
}

auto IsRejected() { return Fails(absl::StatusCode::kInvalidArgument, Reason::kField); }

CudaRouterForward Forward(int64_t rows) {
  return {.rows = rows,
          .logits = Somewhere<float>(),
          .indices = Somewhere<uint8_t>(),
          .states = Somewhere<RowState>(),
          .probs = Somewhere<float>(),
          .routing_map = Somewhere<uint8_t>()};
}

TEST(ReplayCudaArguments, NothingIsLaunchedForNoRows) {
  EXPECT_OK(LaunchRouterForward(kConfig, Forward(0), nullptr));
  EXPECT_OK(LaunchRouterForward(kConfig, {}, nullptr));
  EXPECT_OK(LaunchRouterBackward(kConfig, {}, nullptr));
}

TEST(ReplayCudaArguments, RejectsConfigurationsAndRowsThatCannotBe) {
  EXPECT_THAT(LaunchRouterForward({.num_experts = 8, .top_k = 9}, Forward(1), nullptr), IsRejected());
  EXPECT_THAT(LaunchRouterForward(kConfig, Forward(-1), nullptr), IsRejected());
  EXPECT_THAT(LaunchRouterForward(kConfig, Forward(kMaxLocalRows + 1), nullptr), IsRejected());
}

TEST(ReplayCudaArguments, RejectsMissingPointers) {
  CudaRouterForward forward = Forward(1);
  forward.states = nullptr;
  const absl::Status status = LaunchRouterForward(kConfig, forward, nullptr);
  EXPECT_THAT(status, IsRejected());
  EXPECT_EQ(GetErrorDetail(status)->field, "router_forward.states");
  EXPECT_THAT(LaunchRouterBackward(kConfig, {.rows = 1}, nullptr), IsRejected());
  EXPECT_THAT(LaunchRealign({}, nullptr), IsRejected());
  EXPECT_THAT(LaunchRealign({.packed_plan = Somewhere<uint8_t>() + 8, .states = Somewhere<RowState>()}, nullptr),
              IsRejected());
}

}  // namespace
}  // namespace routing_replay::trainer
