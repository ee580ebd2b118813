#include "client/rrctl/progress.h"

#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(ProgressMeterTest, RateAndTimeLeftFollowFromTheMean) {
  ManualClock clock;
  ProgressMeter meter(clock);
  EXPECT_EQ(meter.Describe({.done = 0, .total = 10, .bytes = 0}), "0 of 10 samples, 0 B");
  clock.Advance(std::chrono::milliseconds(900));
  EXPECT_EQ(meter.Describe({.done = 1, .total = 10, .bytes = kMiB}), "1 of 10 samples, 1.0 MiB");
  clock.Advance(std::chrono::milliseconds(1100));
  EXPECT_EQ(meter.Describe({.done = 4, .total = 10, .bytes = 8 * kMiB}),
            "4 of 10 samples, 8.0 MiB, 4.0 MiB/s, 3.0 s left");
  EXPECT_EQ(meter.Describe({.done = 10, .total = 10, .bytes = 8 * kMiB}), "10 of 10 samples, 8.0 MiB, 4.0 MiB/s");
}

TEST(ProgressMeterTest, APhaseBeginsAnew) {
  ManualClock clock;
  ProgressMeter meter(clock);
  meter.Describe({.phase = "append", .done = 0, .total = 4});
  clock.Advance(std::chrono::seconds(5));
  EXPECT_EQ(meter.Describe({.phase = "read", .done = 2, .total = 4, .bytes = 6 * kMiB}),
            "read: 2 of 4 samples, 6.0 MiB");
  clock.Advance(std::chrono::seconds(2));
  EXPECT_EQ(meter.Describe({.phase = "read", .done = 3, .total = 4, .bytes = 8 * kMiB}),
            "read: 3 of 4 samples, 8.0 MiB, 1.0 MiB/s, 2.0 s left");
}

TEST(ProgressMeterTest, NothingDoneHasNoRate) {
  ManualClock clock;
  ProgressMeter meter(clock);
  meter.Describe({.total = 4});
  clock.Advance(std::chrono::seconds(5));
  EXPECT_EQ(meter.Describe({.total = 4}), "0 of 4 samples, 0 B");
}

}  // namespace
}  // namespace routing_replay::client
