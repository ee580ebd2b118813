#include "server/operations/page/rate_history.h"

#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

TEST(RateHistoryTest, RatesOfAnHourAndNoLonger) {
  ManualClock clock;
  RateHistory history;
  EXPECT_TRUE(history.Get(RateHistory::kCalls).per_second.empty());
  // Ten calls per second for a long time, then forty.
  double calls = 0;
  const auto go_on = [&](size_t samples, double per_second) {
    for (size_t i = 0; i < samples; ++i) {
      clock.Advance(RateHistory::kInterval);
      history.Add(clock.Now(), {0, 0, calls += 5 * per_second, 0});
    }
  };
  go_on(2, 10);
  EXPECT_EQ(history.Get(RateHistory::kCalls).per_second, std::vector<double>{10});
  go_on(2000, 10);
  RateHistory::Rates rates = history.Get(RateHistory::kCalls);
  EXPECT_EQ(rates.span, std::chrono::hours(1));
  EXPECT_EQ(rates.per_second, std::vector<double>(RateHistory::kPoints, 10));
  go_on(360, 40);
  rates = history.Get(RateHistory::kCalls);
  EXPECT_EQ(rates.per_second.front(), 10);
  EXPECT_EQ(rates.per_second[59], 10);
  EXPECT_EQ(rates.per_second[60], 40);
  EXPECT_EQ(rates.per_second.back(), 40);
  EXPECT_EQ(rates.last_minute, 40);
  EXPECT_EQ(history.Get(RateHistory::kIngestBytes).last_minute, 0);
}

}  // namespace
}  // namespace routing_replay::testing
