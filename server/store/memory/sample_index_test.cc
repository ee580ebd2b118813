#include "server/store/memory/sample.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"

namespace routing_replay::server {
namespace {

using std::chrono::hours;
using testing::Fails;

constexpr auto kRollout = Producer::kRollout;

class SampleIndexTest : public ::testing::Test {
 protected:
  // Returns a sample that an append has made alive.
  std::shared_ptr<MemorySample> Open(const std::string& id, int64_t handle) {
    std::shared_ptr<MemorySample> sample = *index_.FindOrInsert(handle, id, kRollout, clock_.Now());
    AppendCommand command;
    command.header.sample = id;
    ParentRows parent;
    EXPECT_OK(*sample->Append(command, parent));
    return sample;
  }

  ByteBudget budget_{1 << 20};
  ManualClock clock_;
  ContentIds content_ids_;
  std::shared_ptr<const RunContext> run_ = std::make_shared<const RunContext>(RunContext{
      {.run = "r", .geometry = std::make_shared<Geometry>(testing::TestGeometry()), .options = {.ttl = hours(10)}},
      budget_,
      clock_,
      content_ids_});
  SampleIndex index_{run_};
};

TEST_F(SampleIndexTest, FindsByHandleAndId) {
  const auto sample = Open("a", 7);
  EXPECT_EQ(*index_.FindOrInsert(7, "a", kRollout, clock_.Now()), sample);
  EXPECT_EQ(index_.Find(7, "a", kRollout), sample);
  EXPECT_EQ(index_.Find(7, "", kRollout), sample);
  EXPECT_EQ(index_.Find(7, "b", kRollout), nullptr);
  EXPECT_EQ(index_.Find(8, "", kRollout), nullptr);
  EXPECT_EQ(index_.Find(7, "a", Producer::kTrainer), nullptr);
}

TEST_F(SampleIndexTest, AHandleIsFreeAgainOnceItsSamplesAreGone) {
  const auto sample = Open("a", 7);
  const auto trainer = *index_.FindOrInsert(7, "a", Producer::kTrainer, clock_.Now());
  EXPECT_THAT(index_.FindOrInsert(7, "b", kRollout, clock_.Now()),
              Fails(absl::StatusCode::kAlreadyExists, Reason::kHandleCollision));
  ASSERT_OK_AND_ASSIGN(const auto remains, sample->Remove(Clock::Time::max()));
  EXPECT_TRUE(remains.has_value());
  index_.Remove(*sample);
  index_.Remove(*sample);
  EXPECT_TRUE(trainer->RemoveUnborn());
  index_.Remove(*trainer);
  EXPECT_OK(index_.FindOrInsert(7, "b", kRollout, clock_.Now()));
}

TEST_F(SampleIndexTest, RemovingAnOldSampleLeavesTheNewOne) {
  const auto old = Open("a", 7);
  ASSERT_OK(old->Remove(Clock::Time::max()));
  index_.Remove(*old);
  const auto fresh = Open("a", 7);
  index_.Remove(*old);
  EXPECT_EQ(index_.Find(7, "a", kRollout), fresh);
}

TEST_F(SampleIndexTest, ListsOverShardsById) {
  for (int64_t i = 0; i < 60; ++i) Open(absl::StrCat("s", 100 + i), i * 7);
  const auto some = index_.After(kRollout, "s109", 5);
  ASSERT_EQ(some.size(), 5u);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(some[i]->id(), absl::StrCat("s", 110 + i));
  EXPECT_EQ(index_.After(kRollout, "", 1000).size(), 60u);
  EXPECT_TRUE(index_.After(kRollout, "s159", 5).empty());
}

TEST_F(SampleIndexTest, IdleSamplesComeUpWhenTheirTimeHasCome) {
  const auto a = Open("a", 0), b = Open("b", 16), c = Open("c", 32);  // All in one shard.
  clock_.Advance(hours(6));
  EXPECT_TRUE(index_.FindIdle(0, clock_.Now(), 10).empty());
  const std::vector<RowRange> none;
  ASSERT_OK(b->Snapshot(none, nullptr));
  clock_.Advance(hours(4));
  EXPECT_EQ(index_.FindIdle(0, clock_.Now(), 1).size(), 1u);
  EXPECT_EQ(index_.FindIdle(0, clock_.Now(), 10).size(), 2u);
  EXPECT_TRUE(index_.FindIdle(1, clock_.Now(), 10).empty());
  ASSERT_OK_AND_ASSIGN(const auto used, b->Remove(clock_.Now() - hours(10)));
  EXPECT_FALSE(used.has_value());
  ASSERT_OK_AND_ASSIGN(const auto idle, a->Remove(clock_.Now() - hours(10)));
  EXPECT_TRUE(idle.has_value());
  index_.Remove(*a);
  clock_.Advance(hours(6));
  EXPECT_EQ(index_.FindIdle(0, clock_.Now(), 10).size(), 2u);
}

TEST_F(SampleIndexTest, AClosedIndexTakesNothing) {
  const auto sample = Open("a", 7);
  EXPECT_EQ(index_.Close().size(), 1u);
  EXPECT_EQ(index_.Find(7, "a", kRollout), nullptr);
  EXPECT_THAT(index_.FindOrInsert(7, "a", kRollout, clock_.Now()), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  index_.Remove(*sample);
}

}  // namespace
}  // namespace routing_replay::server
