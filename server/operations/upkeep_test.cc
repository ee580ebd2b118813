#include "server/operations/upkeep.h"

#include <gtest/gtest.h>

namespace routing_replay::server {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(MemoryTrimTest, WhatIsAccountedStays) {
  MemoryTrim trim;
  EXPECT_FALSE(trim.Look(1200 * kMiB, 1000 * kMiB, true));
  EXPECT_FALSE(trim.Look(40 * kMiB, 0, true));
  EXPECT_TRUE(trim.Look(1400 * kMiB, 1000 * kMiB, true));
}

TEST(MemoryTrimTest, ABusyServerKeepsIt) {
  MemoryTrim trim;
  EXPECT_FALSE(trim.Look(900 * kMiB, 10 * kMiB, false));
  EXPECT_TRUE(trim.Look(900 * kMiB, 10 * kMiB, true));
}

TEST(MemoryTrimTest, WhatDoesNotGoIsNotAskedForAgain) {
  MemoryTrim trim;
  ASSERT_TRUE(trim.Look(900 * kMiB, 10 * kMiB, true));
  trim.Trimmed(500 * kMiB);
  EXPECT_FALSE(trim.Look(505 * kMiB, 10 * kMiB, true));
  EXPECT_TRUE(trim.Look(600 * kMiB, 10 * kMiB, true)) << "there is more of it";
}

TEST(MemoryTrimTest, WhatWentByItselfComesBackAndGoes) {
  MemoryTrim trim;
  ASSERT_TRUE(trim.Look(900 * kMiB, 10 * kMiB, true));
  trim.Trimmed(500 * kMiB);
  EXPECT_FALSE(trim.Look(100 * kMiB, 60 * kMiB, true));
  EXPECT_TRUE(trim.Look(450 * kMiB, 10 * kMiB, true));
}

}  // namespace
}  // namespace routing_replay::server
