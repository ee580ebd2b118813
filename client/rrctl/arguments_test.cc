#include "client/rrctl/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

using ::testing::ElementsAre;

TEST(ArgumentsTest, AnIntervalIsJoined) {
  EXPECT_THAT(JoinWatchInterval({"stat", "--watch", "5", "run"}), ElementsAre("stat", "--watch=5", "run"));
  EXPECT_THAT(JoinWatchInterval({"stat", "run", "--watch", "500ms"}), ElementsAre("stat", "run", "--watch=500ms"));
  EXPECT_THAT(JoinWatchInterval({"--watch", "0"}), ElementsAre("--watch=0"));
}

TEST(ArgumentsTest, EverythingElseStays) {
  EXPECT_THAT(JoinWatchInterval({"--watch", "run", "5"}), ElementsAre("--watch", "run", "5"));
  EXPECT_THAT(JoinWatchInterval({"--watch", "5x"}), ElementsAre("--watch", "5x"));
  EXPECT_THAT(JoinWatchInterval({"--watch=2", "5"}), ElementsAre("--watch=2", "5"));
  EXPECT_THAT(JoinWatchInterval({"--", "--watch", "5"}), ElementsAre("--", "--watch", "5"));
  EXPECT_THAT(JoinWatchInterval({"--watch", "--", "5"}), ElementsAre("--watch", "--", "5"));
  EXPECT_THAT(JoinWatchInterval({"--watch"}), ElementsAre("--watch"));
  EXPECT_THAT(JoinWatchInterval({}), ElementsAre());
}

}  // namespace
}  // namespace routing_replay::client
