#include "proto/wire/clock.h"

#include <gtest/gtest.h>

namespace routing_replay {
namespace {

using std::chrono::milliseconds;

TEST(DeadlineAfter, NeitherEndOverflows) {
  const Clock::Time now = Clock::Real().Now();
  EXPECT_EQ(DeadlineAfter(now, milliseconds(5)), now + milliseconds(5));
  for (const milliseconds none : {milliseconds::min(), milliseconds(-1), milliseconds(0)}) {
    EXPECT_EQ(DeadlineAfter(now, none), now);
  }
  EXPECT_EQ(DeadlineAfter(now, milliseconds::max()), now + std::chrono::hours(24 * 365 * 100));
}

}  // namespace
}  // namespace routing_replay
