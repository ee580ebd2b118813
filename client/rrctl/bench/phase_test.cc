#include "client/rrctl/bench/phase.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

Clock::Time Later() { return Clock::Real().Now() + std::chrono::minutes(5); }

bool Wait(int64_t) {
  std::this_thread::yield();
  return false;
}

TEST(PhaseTest, EveryItemOnce) {
  std::vector<std::atomic<int>> done(100);
  std::atomic<int> tasks = 0;
  const PhaseResult result =
      RunPhase({.workers = 4, .items = 100, .deadline = Later(), .wait = Wait}, [&](int worker) -> PhaseTask {
        tasks += 1 << (8 * worker);
        return [&](int64_t item) {
          EXPECT_EQ(tasks, 0x01010101);
          ++done[item];
          return absl::OkStatus();
        };
      });
  EXPECT_OK(result.status);
  EXPECT_TRUE(result.complete);
  EXPECT_EQ(result.latencies.size(), 100u);
  EXPECT_GE(result.seconds, 0);
  for (const auto& count : done) EXPECT_EQ(count, 1);
}

TEST(PhaseTest, AFailureEndsIt) {
  const PhaseResult result =
      RunPhase({.workers = 1, .items = 100, .deadline = Later(), .wait = Wait}, [](int) -> PhaseTask {
        return [](int64_t item) { return item == 3 ? absl::NotFoundError("three") : absl::OkStatus(); };
      });
  EXPECT_EQ(result.status.code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(result.latencies.size(), 3u);
}

TEST(PhaseTest, StopsWhenAskedAndAtItsDeadline) {
  std::atomic<bool> stopped = false;
  PhaseOptions options{.workers = 2, .items = 1000, .deadline = Later(), .wait = [&](int64_t done) {
                         stopped = done >= 10;
                         return stopped.load();
                       }};
  const PhaseResult result = RunPhase(options, [&](int) -> PhaseTask {
    return [&](int64_t item) {
      while (item >= 10 && !stopped) std::this_thread::yield();
      return absl::OkStatus();
    };
  });
  EXPECT_OK(result.status);
  EXPECT_GE(result.latencies.size(), 10u);

  options.deadline = Clock::Real().Now();
  const PhaseResult late = RunPhase(options, [](int) -> PhaseTask { return [](int64_t) { return absl::OkStatus(); }; });
  EXPECT_OK(late.status);
  EXPECT_FALSE(late.complete);
  EXPECT_TRUE(late.latencies.empty());
}

}  // namespace
}  // namespace routing_replay::client
