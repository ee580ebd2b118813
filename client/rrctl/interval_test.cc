#include "client/rrctl/interval.h"

#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

using std::chrono::milliseconds;

TEST(IntervalTest, SecondsOrANumberWithAUnit) {
  EXPECT_EQ(*ParseInterval("2"), milliseconds(2000));
  EXPECT_EQ(*ParseInterval("0.5"), milliseconds(500));
  EXPECT_EQ(*ParseInterval("500ms"), milliseconds(500));
  EXPECT_EQ(*ParseInterval("1m30s"), milliseconds(90000));
  for (const char* bad : {"", "x", "0", "-1", "2x", "nan", "inf", "1e9", "25h", "1us"}) {
    EXPECT_EQ(ParseInterval(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace routing_replay::client
