// Ranks as threads, one per GPU that is there.
#include "routing_replay/trainer/nccl_collective.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "routing_replay/trainer/collective.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::trainer {
namespace {

Collective::Deadline After(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }
Collective::Deadline InAMinute() { return After(std::chrono::minutes(1)); }

int32_t Devices() {
  int devices = 0;
  EXPECT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
  return std::min(devices, 8);
}

void OnAll(int32_t size, const std::function<void(Collective&)>& body) {
  ASSERT_OK_AND_ASSIGN(const NcclId id, NewNcclId());
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
      cudaStream_t stream;
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      {
        ASSERT_OK_AND_ASSIGN(const auto collective, JoinNcclCollective(id, rank, size, stream, InAMinute()));
        EXPECT_EQ(collective->rank(), rank);
        EXPECT_EQ(collective->size(), size);
        body(*collective);
      }
      cudaStreamDestroy(stream);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class NcclCollective : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto id = NewNcclId(); id.status().code() == absl::StatusCode::kUnavailable) GTEST_SKIP() << id.status();
  }
};

TEST_F(NcclCollective, ReducesAndGathers) {
  OnAll(Devices(), [](Collective& collective) {
    for (int64_t count : {0, 1, 1000, 10, 300000}) {
      std::vector<int64_t> values(count), expected(count);
      for (int64_t i = 0; i < count; ++i) {
        values[i] = i % 7 * collective.rank() - i;
        expected[i] = i % 7 * (collective.size() - 1) - i;
      }
      ASSERT_OK(collective.AllReduceMax(absl::MakeSpan(values), InAMinute()));
      EXPECT_EQ(values, expected);
      const std::vector<uint8_t> own(count, static_cast<uint8_t>(collective.rank() + 1));
      ASSERT_OK_AND_ASSIGN(const auto all, collective.AllGather(own, InAMinute()));
      ASSERT_EQ(all.size(), static_cast<size_t>(count * collective.size()));
      for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], i / count + 1);
    }
  });
}

TEST_F(NcclCollective, Agrees) {
  OnAll(Devices(), [](Collective& collective) {
    StepReport step{.policy = MissingPolicy::kLive, .samples = {{.sample = "a"}, {.sample = "b"}}};
    if (collective.rank() == 0) step.samples[1].status = SampleStatus::kNotFound;
    ASSERT_OK_AND_ASSIGN(const StepDecision decision, Agree(collective, step, InAMinute()));
    EXPECT_EQ(decision.fallen_back, 1);
    EXPECT_EQ(decision.samples[1].missing_on, 0);
  });
}

TEST_F(NcclCollective, ARankThatDoesNotJoin) {
  ASSERT_OK_AND_ASSIGN(const NcclId id, NewNcclId());
  const auto joined = JoinNcclCollective(id, 0, 2, nullptr, After(std::chrono::milliseconds(200)));
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kDeadlineExceeded) << joined.status();
}

TEST_F(NcclCollective, ARankThatNeverComes) {
  if (Devices() < 2) GTEST_SKIP() << "needs two GPUs";
  OnAll(Devices(), [](Collective& collective) {
    std::vector<int64_t> values = {1};
    ASSERT_OK(collective.AllReduceMax(absl::MakeSpan(values), InAMinute()));
    if (collective.rank() == 0) return;
    const auto soon = After(std::chrono::milliseconds(200));
    EXPECT_FALSE(collective.AllReduceMax(absl::MakeSpan(values), soon).ok());
    EXPECT_EQ(collective.AllReduceMax(absl::MakeSpan(values), soon).code(), absl::StatusCode::kFailedPrecondition);
  });
}

}  // namespace
}  // namespace routing_replay::trainer
