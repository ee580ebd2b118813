#include "client/run_lives.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace routing_replay::client {
namespace {

TEST(RunLivesTest, ARunThatWasMadeAgainIsKnownUntilItIsOpenedAgain) {
  RunLives lives(2);
  lives.Open(0, 7);
  lives.Open(1, 8);
  const uint64_t whole = lives.whole();
  EXPECT_NE(whole, 0);
  EXPECT_TRUE(lives.Check(0, "run", 7).ok());
  EXPECT_TRUE(lives.Check(1, "run", 0).ok());  // A server that does not say.
  const absl::Status again = lives.Check(1, "run", 9);
  EXPECT_TRUE(absl::IsDataLoss(again));
  EXPECT_TRUE(absl::StrContains(again.message(), "run \"run\" was made again")) << again;
  EXPECT_TRUE(absl::IsDataLoss(lives.Check(1, "run", 9)));
  EXPECT_EQ(lives.whole(), whole);
  lives.Open(1, 9);
  EXPECT_TRUE(lives.Check(1, "run", 9).ok());
  EXPECT_NE(lives.whole(), whole);
}

TEST(RunLivesTest, WhatIsNotKnownIsLearned) {
  RunLives lives(2);
  lives.Open(0, 7);
  EXPECT_EQ(lives.whole(), 0);
  EXPECT_TRUE(lives.Check(1, "run", 8).ok());
  EXPECT_NE(lives.whole(), 0);
  EXPECT_TRUE(absl::IsDataLoss(lives.Check(1, "run", 9)));
}

}  // namespace
}  // namespace routing_replay::client
