#include "routing_replay/trainer/fallback_limit.h"

#include <gtest/gtest.h>

#include <limits>

namespace routing_replay::trainer {
namespace {

TEST(FallbackLimit, ExactlyTheFractionIsWithinIt) {
  for (int64_t percent = 0; percent <= 100; ++percent) {
    const double limit = static_cast<double>(percent) / 100;
    for (const int64_t times : {1, 3, 7, 1000003}) {
      EXPECT_FALSE(ExceedsFallbackLimit(limit, 100 * times, percent * times)) << percent;
      EXPECT_TRUE(ExceedsFallbackLimit(limit, 100 * times, percent * times + 1)) << percent;
    }
  }
}

TEST(FallbackLimit, NothingAndNoNumber) {
  EXPECT_FALSE(ExceedsFallbackLimit(0, 0, 0));
  EXPECT_FALSE(ExceedsFallbackLimit(0, 5, 0));
  EXPECT_TRUE(ExceedsFallbackLimit(0, 5, 1));
  EXPECT_FALSE(ExceedsFallbackLimit(1, 5, 5));
  EXPECT_TRUE(ExceedsFallbackLimit(std::numeric_limits<double>::quiet_NaN(), 5, 1));
}

}  // namespace
}  // namespace routing_replay::trainer
