// Compares the kernels' C interface on a GPU with that of the CPU: the same calls give the same results.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "routing_replay/trainer/cuda_capi.h"
#include "tests/support/cuda/device_array.h"

namespace {

using routing_replay::testing::CheckCuda;
using routing_replay::testing::DeviceArray;
using routing_replay::testing::DeviceCounters;
using Bytes = std::vector<uint8_t>;

constexpr int64_t kRows = 301;

void ExpectOk(rr_error* error) {
  EXPECT_EQ(error, nullptr) << std::string(error->message.data, error->message.size);
  rr_free(error);
}
rr_text Text(const std::string& text) { return {text.data(), text.size()}; }

template <typename T>
Bytes BytesOf(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Softmax of equal logits and sigmoid of zeros are exact in every dtype, so bytes can be compared. The tests of the
// kernels use other values.
struct Call {
  rrt_router router;
  Bytes logits, indices, states;

  Call(int32_t experts, int32_t score_function, std::mt19937& random)
      : router{.dtype = RRT_FLOAT16,
               .score_function = score_function,
               .num_experts = experts,
               .top_k = 4,
               .num_groups = 1,
               .group_topk = 1,
               .scaling_factor = 1.0},
        logits(kRows * experts * 2, 0) {
    std::vector<uint16_t> ids;
    for (int64_t row = 0; row < kRows; ++row) {
      const auto first = static_cast<uint16_t>(std::uniform_int_distribution<int>(0, experts - 5)(random));
      for (uint16_t k = 0; k < 4; ++k) ids.push_back(first + k);
      states.push_back(static_cast<uint8_t>(row % 4));
    }
    indices = experts <= 256 ? Bytes(ids.begin(), ids.end()) : BytesOf(ids);
  }
  size_t cells() const { return kRows * router.num_experts; }
};

void ExpectSameForward(const Call& call) {
  Bytes probs(call.logits.size(), 1), map(call.cells(), 1), chosen(call.indices.size(), 1);
  rrt_router_counters counters{};
  ExpectOk(rrt_router_forward(&call.router, kRows, call.logits.data(), call.indices.data(), call.states.data(), nullptr,
                              probs.data(), map.data(), chosen.data(), &counters));
  const DeviceArray<uint8_t> logits(call.logits), indices(call.indices), states(call.states);
  const DeviceArray<uint8_t> got_probs(probs), got_map(map), got_chosen(chosen);
  const DeviceCounters<rrt_router_counters> counted;
  ExpectOk(rrt_cuda_router_forward(&call.router, kRows, logits.data(), indices.data(), states.data(), nullptr,
                                   got_probs.data(), got_map.data(), got_chosen.data(), counted.data(), nullptr));
  EXPECT_EQ(got_probs.Download(), probs);
  EXPECT_EQ(got_map.Download(), map);
  EXPECT_EQ(got_chosen.Download(), chosen);
  const rrt_router_counters read = counted.Read();
  EXPECT_EQ(std::memcmp(&read, &counters, sizeof(read)), 0);

  Bytes grads(call.logits.size(), 1);
  ExpectOk(rrt_router_backward(&call.router, kRows, call.logits.data(), chosen.data(), probs.data(), grads.data(),
                               &counters));
  const DeviceArray<uint8_t> got_grads(Bytes(grads.size(), 2));
  ExpectOk(rrt_cuda_router_backward(&call.router, kRows, logits.data(), got_chosen.data(), got_probs.data(),
                                    got_grads.data(), nullptr, nullptr));
  EXPECT_EQ(got_grads.Download(), grads);
}

TEST(CudaCapi, TheDeviceIsFitAndStaysCurrent) {
  ExpectOk(rrt_cuda_check_device(0));
  int device = -1;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  EXPECT_EQ(device, 0);
}

TEST(CudaCapi, TheRouterIsThatOfTheCpu) {
  std::mt19937 random(1);
  for (int32_t experts : {8, 61, 256, 300, 1000}) {
    for (int32_t score_function : {0, 1}) {
      SCOPED_TRACE(experts);
      const Call call(experts, score_function, random);
      ExpectSameForward(call);
    }
  }
}

// A micro-batch of two sequences, one of which is missing, from local rows to the buffers of the device.
TEST(CudaCapi, AStagedMicroBatchIsRealigned) {
  const std::string geometry = R"({"num_layers": 3, "num_experts": 300, "top_k": 2})";
  const std::string description = R"({"geometry": )" + geometry + R"(, "micro_batch": {"format": "THD",
      "sequences": [{"sample": "a", "tokens": 6}, {"sample": "b", "tokens": 3}], "cu_seqlens_padded": [0, 8, 12],
      "total_rows": 12, "partition": "contiguous"}})";
  rrt_source* source = nullptr;
  ExpectOk(rrt_local_source_new(Text(geometry), &source));
  std::vector<uint16_t> rows;
  for (uint16_t i = 0; i < 5 * 3 * 2; ++i) rows.push_back(i * 9);
  const int64_t axes[] = {5, 3, 2};
  const rr_tensor tensor{
      .data = rows.data(), .size = rows.size() * 2, .dtype = {"U16", 3}, .shape = axes, .shape_count = 3};
  ExpectOk(rrt_local_source_add(source, {"a", 1}, {}, {}, &tensor, nullptr, 0));
  rrt_plan* plan = nullptr;
  const rr_bytes* described = nullptr;
  ExpectOk(rrt_plan_new(Text(description), 1, &plan, &described));
  rr_free(described);
  rrt_fetch* fetch = nullptr;
  const rrt_fetch_options options{.missing = RRT_LIVE};
  ExpectOk(rrt_fetch_new(plan, &options, &fetch));
  ExpectOk(rrt_source_fetch(source, fetch));
  Bytes indices(12 * 3 * 2 * 2), states(12);
  const rrt_target target{indices.data(), indices.size(), states.data(), states.size()};
  const rrt_records* records = nullptr;
  ExpectOk(rrt_fetch_result(fetch, &target, &records));
  rr_free(records);

  rrt_staged* staged = nullptr;
  rrt_staged_shape shape;
  ExpectOk(rrt_staged_new(fetch, &staged, &shape));
  EXPECT_EQ(shape.replayed_rows, 5);
  void* pinned = nullptr;
  CheckCuda(cudaMallocHost(&pinned, shape.bytes), "cudaMallocHost");
  ExpectOk(rrt_staged_write(staged, pinned, shape.bytes));
  const DeviceArray<uint8_t> block(static_cast<size_t>(shape.bytes));
  const DeviceArray<uint8_t> got_indices(Bytes(indices.size(), 0xCD)), got_states(Bytes(states.size(), 0xCD));
  CheckCuda(cudaMemcpyAsync(block.data(), pinned, shape.bytes, cudaMemcpyHostToDevice, nullptr), "cudaMemcpyAsync");
  ExpectOk(rrt_cuda_realign(block.data(), shape.staging_offset, shape.units, got_indices.data(), got_states.data(),
                            nullptr));
  EXPECT_EQ(got_indices.Download(), indices);
  EXPECT_EQ(got_states.Download(), states);
  CheckCuda(cudaFreeHost(pinned), "cudaFreeHost");
  for (void* object : std::initializer_list<void*>{staged, fetch, plan, source}) rr_object_free(object);
}

}  // namespace
