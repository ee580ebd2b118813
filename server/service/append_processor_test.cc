#include "server/service/append_processor.h"

#include <gtest/gtest.h>
#include <memory>

#include "server/store/memory/memory_store.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

class AppendProcessorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(store_->OpenRun("run", &geometry_, RunOptions{})); }

  AppendAck Append(uint64_t append_id, uint64_t resend_key, RowRange rows = {0, 2}) {
    AppendRequest request;
    request.append = AppendHeader{.append_id = append_id,
                                  .sample = "s",
                                  .rows = rows,
                                  .unrecorded = {rows},
                                  .seal_num_tokens = rows.end + 1,
                                  .resend_key = resend_key};
    return processor_.Process("run", std::move(request), *budget_.Reserve(0));
  }
  bool IsThere() { return store_->Stat("run", Producer::kRollout, {.sample = "s"}).ok(); }
  void Release() { ASSERT_OK(store_->Release("run", {}, {{.sample = "s"}})); }

  const Geometry geometry_ = Geometry::Uniform(2, 16, 2);
  ByteBudget budget_{int64_t{1} << 26};
  const std::unique_ptr<Store> store_ = NewMemoryStore({.budget = &budget_});
  const AppendProcessor processor_{*store_, budget_, int64_t{1} << 20};
};

// The answer was lost, and the sample was read and released before the retry arrived.
TEST_F(AppendProcessorTest, AnAppendThatIsSentAgainBringsNoReleasedSampleBack) {
  const AppendAck first = Append(1, 77);
  ASSERT_OK(first.error);
  Release();
  const AppendAck again = Append(2, 77);
  ASSERT_OK(again.error);
  EXPECT_EQ(again.append_id, 2u);
  EXPECT_EQ(again.sample, "s");
  EXPECT_EQ(again.committed_rows, 2);
  EXPECT_EQ(again.content_id, first.content_id);
  EXPECT_TRUE(again.sealed);
  EXPECT_FALSE(IsThere());
}

TEST_F(AppendProcessorTest, WhileTheSampleIsThereItIsTrimmedAsAnyOther) {
  ASSERT_OK(Append(1, 77).error);
  const AppendAck again = Append(2, 77);
  ASSERT_OK(again.error);
  EXPECT_EQ(again.trimmed_rows, 2);
  EXPECT_TRUE(IsThere());
}

TEST_F(AppendProcessorTest, AnotherAppendBeginsTheReleasedSampleAnew) {
  for (const uint64_t key : {77, 78, 0, 0}) {
    ASSERT_OK(Append(1, key).error);
    EXPECT_TRUE(IsThere());
    Release();
  }
}

TEST_F(AppendProcessorTest, OfARunThatIsGoneItIsRejected) {
  ASSERT_OK(Append(1, 77).error);
  ASSERT_OK(store_->DropRun("run"));
  EXPECT_THAT(Append(2, 77).error, testing::Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
}

TEST_F(AppendProcessorTest, WhatWasRejectedIsNotAcknowledgedLater) {
  EXPECT_FALSE(Append(1, 77, {1, 2}).error.ok());  // A gap.
  EXPECT_FALSE(Append(2, 77, {1, 2}).error.ok());
}

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
  recent.Add("run", Header(3), {});  // Adding it again does not add a new entry.
  EXPECT_FALSE(recent.Find("run", Header(1)));
  EXPECT_FALSE(recent.Find("run", Header(2)));
  EXPECT_TRUE(recent.Find("run", Header(3)));
  EXPECT_TRUE(recent.Find("run", Header(RecentAppends::kCapacity + 2)));
}

}  // namespace
}  // namespace routing_replay::testing
