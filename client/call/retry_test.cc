#include "client/call/retry.h"

#include <gtest/gtest.h>

#include <vector>

namespace routing_replay::client {
namespace {

using std::chrono::milliseconds;

const absl::Status kDown = absl::UnavailableError("down");

// Returns the wait after each attempt. Attempt i ends with ends[i]. The last attempt is not repeated, so has no wait.
std::vector<int64_t> Waits(milliseconds timeout, const std::vector<absl::Status>& ends) {
  ManualClock clock;
  RetrySchedule schedule(
      clock.Now() + timeout,
      Backoff({.initial = milliseconds(100), .maximum = milliseconds(400), .factor = 2, .jitter = 0}));
  std::vector<int64_t> waits;
  for (const absl::Status& end : ends) {
    const auto wait = schedule.WaitAfter(end, clock.Now());
    if (!wait) break;
    waits.push_back(std::chrono::duration_cast<milliseconds>(*wait).count());
    clock.Advance(*wait);
  }
  return waits;
}

TEST(RetryTest, TriesAgainUntilItWorks) {
  EXPECT_EQ(Waits(milliseconds(10000), {kDown, kDown, kDown, kDown, absl::OkStatus(), kDown}),
            (std::vector<int64_t>{100, 200, 400, 400}));
}

TEST(RetryTest, OtherErrorsAreFinal) {
  EXPECT_TRUE(Waits(milliseconds(10000), {absl::ResourceExhaustedError("full")}).empty());
}

TEST(RetryTest, NeverWaitsPastTheDeadline) {
  EXPECT_EQ(Waits(milliseconds(500), {kDown, kDown, kDown, kDown}), (std::vector<int64_t>{100, 200}));
  EXPECT_TRUE(Waits(milliseconds(0), {kDown}).empty());
}

}  // namespace
}  // namespace routing_replay::client
