// Releases that wait for a checkpoint.
#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr auto kRollout = Producer::kRollout;
constexpr auto kTrainer = Producer::kTrainer;
constexpr auto kAfter = ReleaseMode::kAfterCheckpoint;
constexpr auto kCheckpointed = ReleaseMode::kCheckpointed;

const std::vector<SampleRef> kBoth{{.sample = "a"}, {.sample = "none"}, {.sample = "b"}};

TEST_P(StoreConformance, ASealedSampleAwaitsACheckpoint) {
  Fill("a", 40);
  Fill("b", 40);
  ASSERT_OK(store_->Seal("run", kRollout, "a", 41, 0));
  const uint64_t content_id = Stat("a").content_id;
  ASSERT_OK_AND_ASSIGN(const ReleaseResult released, store_->Release("run", std::nullopt, kBoth, kAfter));
  EXPECT_EQ(released.kept, 1);
  EXPECT_EQ(released.samples, 1);
  EXPECT_FALSE(Exists("b"));
  EXPECT_TRUE(Stat("a").awaits_checkpoint);
  EXPECT_EQ(Stat("a").content_id, content_id);
  EXPECT_EQ(Read("a"), ExpectedRows(geometry(), Trajectory{}, 40));
  ASSERT_OK_AND_ASSIGN(const ReleaseResult again, store_->Release("run", std::nullopt, kBoth, kAfter));
  EXPECT_EQ(again.kept, 1);
  EXPECT_EQ(again.samples, 0);
  ASSERT_OK_AND_ASSIGN(const ReleaseResult held, store_->Release("run", kRollout, kBoth, kCheckpointed));
  EXPECT_EQ(held.samples, 1);
  EXPECT_EQ(held.kept, 0);
  EXPECT_FALSE(Exists("a"));
}

TEST_P(StoreConformance, ACheckpointReleasesOnlyWhatAwaitsIt) {
  for (const char* sample : {"a", "b"}) {
    for (const Producer producer : {kRollout, kTrainer}) {
      ASSERT_OK(Append({.sample = sample, .producer = producer, .rows = {0, 40}, .group = 7, .seal_num_tokens = 41}));
    }
  }
  const std::vector<SampleRef> a{{.handle = SampleHandle("a")}};
  ASSERT_OK_AND_ASSIGN(const ReleaseResult kept, store_->Release("run", kRollout, a, kAfter));
  EXPECT_EQ(kept.kept, 1);
  ASSERT_OK_AND_ASSIGN(const ReleaseResult other, store_->ReleaseGroups("run", std::nullopt, {8, 9}, kCheckpointed));
  EXPECT_EQ(other.samples, 0);
  ASSERT_OK_AND_ASSIGN(const ReleaseResult held, store_->ReleaseGroups("run", std::nullopt, {7, 8}, kCheckpointed));
  EXPECT_EQ(held.samples, 1);
  EXPECT_FALSE(Exists("a"));
  EXPECT_TRUE(Exists("a", kTrainer));
  EXPECT_TRUE(Exists("b"));
  ASSERT_OK_AND_ASSIGN(const ReleaseResult groups, store_->ReleaseGroups("run", kTrainer, {0, 8}, kAfter));
  EXPECT_EQ(groups.kept, 2);
  EXPECT_FALSE(Stat("b").awaits_checkpoint);
  EXPECT_TRUE(Stat("b", kTrainer).awaits_checkpoint);
}

TEST_P(StoreConformance, AReleaseOfAnotherContentLeavesTheSampleAlone) {
  Fill("a", 40);
  Fill("b", 40);
  const uint64_t content_id = Stat("a").content_id;
  for (const char* sample : {"a", "b"}) ASSERT_OK(store_->Seal("run", kRollout, sample, 41, 0));
  const std::vector<SampleRef> others{{.sample = "a", .content_id = content_id + 1},
                                      {.handle = SampleHandle("b"), .content_id = content_id}};
  for (const ReleaseMode mode : {ReleaseMode::kNow, kAfter, kCheckpointed}) {
    ASSERT_OK_AND_ASSIGN(const ReleaseResult none, store_->Release("run", kRollout, others, mode));
    EXPECT_EQ(none.samples + none.kept, 0);
  }
  EXPECT_FALSE(Stat("a").awaits_checkpoint);
  const std::vector<SampleRef> one{{.sample = "a", .content_id = Stat("a").content_id}, {.sample = "b"}};
  ASSERT_OK_AND_ASSIGN(const ReleaseResult kept, store_->Release("run", kRollout, one, kAfter));
  EXPECT_EQ(kept.kept, 2);
  ASSERT_OK_AND_ASSIGN(const ReleaseResult held, store_->Release("run", kRollout, one, kCheckpointed));
  EXPECT_EQ(held.samples, 2);
}

TEST_P(StoreConformance, ANewLifeAwaitsNoCheckpoint) {
  Fill("a", 40);
  Fill("b", 40);
  for (const char* sample : {"a", "b"}) ASSERT_OK(store_->Seal("run", kRollout, sample, 41, 0));
  ASSERT_OK_AND_ASSIGN(const ReleaseResult kept, store_->Release("run", std::nullopt, kBoth, kAfter));
  EXPECT_EQ(kept.kept, 2);
  ASSERT_OK(Append({.sample = "c", .rows = {20, 20}, .prefix = PrefixReference{"a", 20, 0}}));
  EXPECT_FALSE(Stat("c").awaits_checkpoint);
  ASSERT_OK(Append({.sample = "a", .rows = {10, 20}, .group = 3}));  // Trimmed: it stays as it is, but for its group.
  EXPECT_TRUE(Stat("a").awaits_checkpoint);
  ASSERT_OK(store_->Truncate("run", kRollout, "a", 40, std::nullopt));
  ASSERT_OK(Append({.sample = "b", .rows = {0, 10}, .restart_nonce = 5}));
  EXPECT_FALSE(Stat("a").awaits_checkpoint);
  EXPECT_FALSE(Stat("b").awaits_checkpoint);
  ASSERT_OK_AND_ASSIGN(const ReleaseResult held, store_->Release("run", std::nullopt, kBoth, kCheckpointed));
  EXPECT_EQ(held.samples, 0);
}

TEST_P(StoreConformance, WhatAwaitsACheckpointExpiresAsAnyOther) {
  ReopenRun({.ttl = std::chrono::hours(10), .block_rows = kWindow});
  Fill("a", 40);
  ASSERT_OK(store_->Seal("run", kRollout, "a", 41, 0));
  clock_.Advance(std::chrono::hours(6));
  ASSERT_OK(store_->Release("run", std::nullopt, kBoth, kAfter));
  clock_.Advance(std::chrono::hours(6));
  EXPECT_EQ(store_->Sweep(100), 0);  // The release was a use.
  clock_.Advance(std::chrono::hours(6));
  EXPECT_EQ(store_->Sweep(100), 1);
}

}  // namespace
}  // namespace routing_replay::testing
