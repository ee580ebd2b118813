#include "proto/wire/backoff.h"

#include <gtest/gtest.h>

namespace routing_replay {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

Backoff WithRandom(double value, double jitter = 0.5) {
  return Backoff({.initial = milliseconds(100), .maximum = milliseconds(1000), .factor = 3, .jitter = jitter},
                 [value] { return value; });
}

TEST(BackoffTest, GrowsUpToTheMaximumAndStartsAgain) {
  Backoff backoff = WithRandom(0.5);
  for (const int expected : {100, 300, 900, 1000, 1000}) EXPECT_EQ(backoff.Next(), milliseconds(expected));
  backoff.Reset();
  EXPECT_EQ(backoff.Next(), milliseconds(100));
}

TEST(BackoffTest, JitterSpreadsBothWaysButNeverAboveTheMaximum) {
  Backoff low = WithRandom(0);
  for (const int expected : {50, 150, 450, 500, 500}) EXPECT_EQ(low.Next(), milliseconds(expected));
  Backoff high = WithRandom(1);
  for (const int expected : {150, 450, 1000, 1000}) EXPECT_EQ(high.Next(), milliseconds(expected));
}

TEST(BackoffTest, EveryWaitIsInsideItsSpread) {
  Backoff backoff({.initial = milliseconds(10), .maximum = milliseconds(160), .factor = 2, .jitter = 0.25});
  for (int round = 0; round < 100; ++round) {
    backoff.Reset();
    for (int nominal = 10; nominal <= 160; nominal *= 2) {
      const auto wait = backoff.Next();
      EXPECT_GE(wait, microseconds(750 * nominal));
      EXPECT_LE(wait, microseconds(std::min(160000, 1250 * nominal)));
    }
  }
}

}  // namespace
}  // namespace routing_replay
