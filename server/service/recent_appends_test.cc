#include "server/service/recent_appends.h"

#include <gtest/gtest.h>

namespace routing_replay::server {
namespace {

AppendHeader Header(uint64_t resend_key) { return {.sample = "s", .rows = {0, 4}, .resend_key = resend_key}; }

TEST(RecentAppendsTest, KnowsTheVeryAppendAlone) {
  RecentAppends recent;
  recent.Add("run", Header(7), {.committed_rows = 4, .revision = 2, .content_id = 9, .sealed = true});
  const auto ack = recent.Find("run", Header(7));
  ASSERT_TRUE(ack.has_value());
  EXPECT_EQ(ack->committed_rows, 4);
  EXPECT_EQ(ack->revision, 2);
  EXPECT_EQ(ack->content_id, 9u);
  EXPECT_TRUE(ack->sealed);
  EXPECT_FALSE(recent.Find("run", Header(8)));
  EXPECT_FALSE(recent.Find("other", Header(7)));
  AppendHeader other = Header(7);
  other.sample = "t";
  EXPECT_FALSE(recent.Find("run", other));
  other = Header(7);
  other.rows = {0, 5};
  EXPECT_FALSE(recent.Find("run", other));
}

TEST(RecentAppendsTest, WithoutAKeyNothingIsKnown) {
  RecentAppends recent;
  recent.Add("run", Header(0), {});
  EXPECT_FALSE(recent.Find("run", Header(0)));
}

TEST(RecentAppendsTest, TheOldestAreForgotten) {
  RecentAppends recent;
  for (uint64_t key = 1; key <= RecentAppends::kCapacity + 2; ++key) recent.Add("run", Header(key), {});
  recent.Add("run", Header(3), {});  // Again, which is no new one.
  EXPECT_FALSE(recent.Find("run", Header(1)));
  EXPECT_FALSE(recent.Find("run", Header(2)));
  EXPECT_TRUE(recent.Find("run", Header(3)));
  EXPECT_TRUE(recent.Find("run", Header(RecentAppends::kCapacity + 2)));
}

}  // namespace
}  // namespace routing_replay::server
