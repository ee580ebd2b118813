#include "server/service/append_processor.h"

#include <memory>

#include "server/store/memory/memory_store.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
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
  void Release() { ASSERT_OK(store_->Release("run", {}, {{.sample = "s"}}, ReleaseMode::kNow)); }

  const Geometry geometry_ = Geometry::Uniform(2, 16, 2);
  ByteBudget budget_{int64_t{1} << 26};
  const std::unique_ptr<Store> store_ = NewMemoryStore({.budget = &budget_});
  const AppendProcessor processor_{*store_, budget_, {.max_payload_bytes = int64_t{1} << 20}};
};

// Its answer was lost, and what it appended was used and released before it came again.
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

TEST_F(AppendProcessorTest, OfARunThatIsGoneItIsRefused) {
  ASSERT_OK(Append(1, 77).error);
  ASSERT_OK(store_->DropRun("run"));
  EXPECT_THAT(Append(2, 77).error, testing::Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
}

TEST_F(AppendProcessorTest, WhatWasRefusedIsNotAcknowledgedLater) {
  EXPECT_FALSE(Append(1, 77, {1, 2}).error.ok());  // A gap.
  EXPECT_FALSE(Append(2, 77, {1, 2}).error.ok());
}

}  // namespace
}  // namespace routing_replay::server
