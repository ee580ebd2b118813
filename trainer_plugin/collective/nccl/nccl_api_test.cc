// What can be said without a GPU.
#include "trainer_plugin/collective/nccl/nccl_api.h"

#include "routing_replay/trainer/nccl_collective.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

TEST(NcclApi, IsThereOrSaysWhyNot) {
  const auto api = NcclApi::Get();
  if (!api.ok()) {
    EXPECT_EQ(api.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(NewNcclId().status(), api.status());
    return;
  }
  EXPECT_NE((*api)->all_reduce, nullptr);
  EXPECT_NE((*api)->comm_finalize, nullptr);
  EXPECT_NE((*api)->comm_destroy, nullptr);
  EXPECT_EQ(*NcclApi::Get(), *api);
}

TEST(NcclCollective, RefusesWhatCannotBe) {
  EXPECT_EQ(MakeNcclCollective(nullptr, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  for (int32_t rank : {-1, 2, 3}) {
    EXPECT_EQ(JoinNcclCollective({}, rank, 2, nullptr, {}).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace routing_replay::trainer
