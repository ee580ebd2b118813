#include "server/operations/newest_versions.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

using std::chrono::minutes;

class NewestVersionsTest : public ::testing::Test {
 protected:
  void Put(const std::string& run, int64_t version) { versions_.Put(run, Producer::kRollout, version); }
  void Get(const std::string& run, int64_t version) { versions_.Get(run, Producer::kRollout, version); }

  ManualClock clock_;
  NewestVersions versions_{clock_};
};

TEST_F(NewestVersionsTest, OfAllRunsTheHighestSinceTheStart) {
  EXPECT_EQ(versions_.put(), kUnknownWeightVersion);
  Put("a", 7);
  Put("b", 5);
  Put("b", kUnknownWeightVersion);
  Get("b", 5);
  Get("b", 3);
  EXPECT_EQ(versions_.put(), 7);
  EXPECT_EQ(versions_.get(), 5);
}

TEST_F(NewestVersionsTest, ARunThatNobodyReadsIsNotBehind) {
  Put("abandoned", 500);
  EXPECT_EQ(versions_.lag(), 0);
  Put("read", 10);
  Get("read", 8);
  EXPECT_EQ(versions_.lag(), 2);
}

TEST_F(NewestVersionsTest, ANewRunBesideAnOldOneIsSeen) {
  Put("old", 500);
  Get("old", 500);
  Put("new", 9);
  Get("new", 2);
  EXPECT_EQ(versions_.lag(), 7);
}

TEST_F(NewestVersionsTest, WhoReadsEverythingOnceHidesTheTrainerUntilItReadsAgain) {
  Put("a", 10);
  Get("a", 3);
  Get("a", 10);  // An export's last sample.
  EXPECT_EQ(versions_.lag(), 0);
  Get("a", 3);
  EXPECT_EQ(versions_.lag(), 7);
}

TEST_F(NewestVersionsTest, AReaderThatIsGoneIsNotBehind) {
  Put("a", 10);
  Get("a", 3);
  clock_.Advance(minutes(29));
  Put("a", 11);
  EXPECT_EQ(versions_.lag(), 8);
  clock_.Advance(minutes(1));
  EXPECT_EQ(versions_.lag(), 0);
}

TEST_F(NewestVersionsTest, ARunThatBeginsAnewHasNoPast) {
  Put("a", 10);
  Get("a", 3);
  versions_.Drop("a");
  versions_.Drop("never there");
  EXPECT_EQ(versions_.lag(), 0);
  Get("a", 0);
  Put("a", 1);
  EXPECT_EQ(versions_.lag(), 1);
}

TEST_F(NewestVersionsTest, ANewestVersionThatIsPutNoMoreIsOver) {
  Put("a", 500);
  Get("a", 100);
  clock_.Advance(minutes(29));
  Put("a", 101);
  Get("a", 100);
  EXPECT_EQ(versions_.lag(), 400);
  clock_.Advance(minutes(1));
  Put("a", 102);
  EXPECT_EQ(versions_.lag(), 2);
}

TEST_F(NewestVersionsTest, RowsOfTrainersDoNotCount) {
  Put("a", 1);
  Get("a", 1);
  versions_.Put("a", Producer::kTrainer, 40);
  versions_.Get("a", Producer::kTrainer, 0);
  EXPECT_EQ(versions_.lag(), 0);
  EXPECT_EQ(versions_.put(), 40);
}

TEST_F(NewestVersionsTest, WhatWasReadBeforeItIsKnownToBePutIsNotBehind) {
  Put("a", 3);
  Get("a", 5);  // Put at another server over the same Redis.
  EXPECT_EQ(versions_.lag(), 0);
}

TEST_F(NewestVersionsTest, RunsThatWereNotUsedForLongestMakeRoom) {
  Put("a", 10);
  Get("a", 3);
  for (size_t i = 0; i < NewestVersions::kMostRuns; ++i) {
    clock_.Advance(std::chrono::milliseconds(1));
    Put(absl::StrCat("run-", i), 1);
  }
  EXPECT_EQ(versions_.lag(), 0);
}

}  // namespace
}  // namespace routing_replay::server
