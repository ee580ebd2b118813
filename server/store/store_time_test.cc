#include "server/store/store_time.h"

#include <gtest/gtest.h>

#include <thread>

namespace routing_replay::server {
namespace {

using std::chrono::seconds;

TEST(CallDeadlineTest, TheEarliestOfThisThreadHolds) {
  const Clock::Time now = Clock::Real().Now();
  EXPECT_EQ(CallDeadline::OfThisThread(), Clock::Time::max());
  {
    const CallDeadline outer(now + seconds(5));
    {
      const CallDeadline later(now + seconds(9));
      EXPECT_EQ(CallDeadline::OfThisThread(), now + seconds(5));
      const CallDeadline earlier(now + seconds(2));
      EXPECT_EQ(CallDeadline::OfThisThread(), now + seconds(2));
    }
    EXPECT_EQ(CallDeadline::OfThisThread(), now + seconds(5));
    std::thread([] { EXPECT_EQ(CallDeadline::OfThisThread(), Clock::Time::max()); }).join();
  }
  EXPECT_EQ(CallDeadline::OfThisThread(), Clock::Time::max());
}

}  // namespace
}  // namespace routing_replay::server
