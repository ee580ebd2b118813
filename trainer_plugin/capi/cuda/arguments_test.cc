// Tests the kernels' C interface as far as it works without a GPU: loading, queries and rejections.
#include <gtest/gtest.h>

#include <string>

#include "routing_replay/trainer/cuda_capi.h"

namespace {

struct Failure {
  int32_t code = 0;
  std::string field;
};

Failure Take(rr_error* error) {
  if (error == nullptr) return {};
  const Failure failure{error->code, {error->field.data, error->field.size}};
  rr_free(error);
  return failure;
}

constexpr int32_t kInvalidArgument = 3, kFailedPrecondition = 9;

rrt_router Router() { return {.dtype = RRT_FLOAT16, .num_experts = 8, .top_k = 2, .num_groups = 1, .group_topk = 1}; }

TEST(CudaCapi, SaysItsVersionAndWhatIsMissing) {
  EXPECT_EQ(rrt_cuda_abi_version(), RRT_CUDA_ABI_VERSION);
  const Failure failure = Take(rrt_cuda_check_device(4711));
  EXPECT_EQ(failure.code, kFailedPrecondition);
  EXPECT_TRUE(failure.field == "cuda.driver" || failure.field == "cuda.device") << failure.field;
}

TEST(CudaCapi, NothingIsLaunchedForNoRows) {
  const rrt_router router = Router();
  EXPECT_EQ(rrt_cuda_router_forward(&router, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                    nullptr),
            nullptr);
  EXPECT_EQ(rrt_cuda_router_backward(&router, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), nullptr);
}

TEST(CudaCapi, RejectionsNameTheField) {
  rrt_router router = Router();
  const auto forward = [&](int64_t rows) {
    return Take(rrt_cuda_router_forward(&router, rows, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                        nullptr, nullptr));
  };
  EXPECT_EQ(forward(1).field, "router_forward.logits");
  EXPECT_EQ(forward(-1).field, "rows");
  router.dtype = 4;
  EXPECT_EQ(forward(1).field, "router.dtype");
  router = Router();
  router.top_k = 9;
  EXPECT_EQ(forward(1).code, kInvalidArgument);
  EXPECT_EQ(forward(1).field, "router.top_k");
  EXPECT_EQ(Take(rrt_cuda_realign(nullptr, 256, 1, nullptr, nullptr, nullptr)).field, "realign.packed_plan");
}

}  // namespace
