#include "client/call/retry.h"

#include <gtest/gtest.h>

#include <vector>

namespace routing_replay::client {
namespace {

using std::chrono::milliseconds;

class RetryTest : public ::testing::Test {
 protected:
  absl::Status Run(milliseconds timeout, const std::function<absl::Status()>& attempt) {
    const Backoff backoff({.initial = milliseconds(100), .maximum = milliseconds(400), .factor = 2, .jitter = 0});
    const RetryTime time{[this] { return clock_.Now(); },
                         [this](Clock::Duration wait) {
                           waits_.push_back(std::chrono::duration_cast<milliseconds>(wait).count());
                           clock_.Advance(wait);
                         }};
    return RetryUnavailable(RetrySchedule(clock_.Now() + timeout, backoff), time, attempt);
  }

  ManualClock clock_;
  std::vector<int64_t> waits_;
};

TEST_F(RetryTest, TriesAgainUntilItWorks) {
  int calls = 0;
  EXPECT_TRUE(
      Run(milliseconds(10000), [&] { return ++calls < 5 ? absl::UnavailableError("down") : absl::OkStatus(); }).ok());
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(waits_, (std::vector<int64_t>{100, 200, 400, 400}));
}

TEST_F(RetryTest, OtherErrorsAreFinal) {
  int calls = 0;
  EXPECT_EQ(Run(milliseconds(10000), [&] { return ++calls, absl::ResourceExhaustedError("full"); }).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(calls, 1);
}

TEST_F(RetryTest, NeverWaitsPastTheDeadline) {
  EXPECT_EQ(Run(milliseconds(500), [] { return absl::UnavailableError("down"); }).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(waits_, (std::vector<int64_t>{100, 200}));
  waits_.clear();
  EXPECT_EQ(Run(milliseconds(0), [] { return absl::UnavailableError("down"); }).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(waits_.empty());
}

}  // namespace
}  // namespace routing_replay::client
