#include "server/operations/log/repeat_filter.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using std::chrono::seconds;

TEST(RepeatFilterTest, OneLinePassesPerIntervalAndTellsWhatWasHeldBack) {
  ManualClock clock;
  RepeatFilter filter(clock, seconds(10));
  EXPECT_EQ(filter.Pass("a"), 0);
  EXPECT_EQ(filter.Pass("b"), 0);
  clock.Advance(seconds(9));
  EXPECT_EQ(filter.Pass("a"), std::nullopt);
  EXPECT_EQ(filter.Pass("a"), std::nullopt);
  clock.Advance(seconds(1));
  EXPECT_EQ(filter.Pass("a"), 2);
  EXPECT_EQ(filter.Pass("a"), std::nullopt);
}

TEST(RepeatFilterTest, TheCountOfABurstIsToldWithoutAnotherLine) {
  ManualClock clock;
  RepeatFilter filter(clock, seconds(10));
  filter.Pass("a");
  filter.Pass("a");
  EXPECT_TRUE(filter.TakeHeldBack().empty());
  clock.Advance(seconds(10));
  const auto taken = filter.TakeHeldBack();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0], std::make_pair(std::string("a"), int64_t{1}));
  EXPECT_TRUE(filter.TakeHeldBack().empty());
  EXPECT_EQ(filter.Pass("a"), std::nullopt);
}

}  // namespace
}  // namespace routing_replay::testing
