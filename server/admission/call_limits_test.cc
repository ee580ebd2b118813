#include "server/admission/call_limits.h"

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

TEST(ConnectionCallsTest, EachConnectionHasTwiceItsCalls) {
  ConnectionCalls calls(2);
  std::vector<std::unique_ptr<Place>> places;
  const auto enter = [&](const char* peer) {
    auto place = calls.Enter(peer);
    if (place.ok()) places.push_back(*std::move(place));
    return place.status();
  };
  for (int i = 0; i < 4; ++i) EXPECT_OK(enter("ipv4:10.0.0.1:1"));
  const absl::Status rejected = enter("ipv4:10.0.0.1:1");
  EXPECT_EQ(rejected.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(rejected)->field, "max-streams");
  EXPECT_OK(enter("ipv4:10.0.0.1:2"));
  places.erase(places.begin());
  EXPECT_OK(enter("ipv4:10.0.0.1:1"));
}

TEST(ConnectionCallsTest, UnixSocketsAreNotCounted) {
  ConnectionCalls calls(1);
  std::vector<std::unique_ptr<Place>> places;
  for (int i = 0; i < 3; ++i) {
    auto place = calls.Enter("unix:");
    ASSERT_OK(place);
    places.push_back(*std::move(place));
  }
}

using ::testing::ElementsAre;
using testing::Fails;
using ::testing::IsEmpty;

class WaitingRoomTest : public ::testing::Test {
 protected:
  absl::Status Enter(int call, const std::string& run, int64_t bytes) {
    auto place = room_.Enter(run, bytes, [this, call] { sent_away_.push_back(call); });
    if (!place.ok()) return place.status();
    places_[call] = *std::move(place);
    return absl::OkStatus();
  }
  static void ExpectFull(const absl::Status& status) {
    EXPECT_THAT(status, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
    EXPECT_EQ(GetErrorDetail(status)->field, "waiting-reads");
    EXPECT_GT(GetErrorDetail(status)->retry_after_ms.value_or(0), 0);
  }

  int64_t used_ = 0;
  WaitingRoom room_{100, [this](int64_t bytes) { used_ = bytes; }};
  std::vector<int> sent_away_;
  std::map<int, std::unique_ptr<Place>> places_;
};

TEST_F(WaitingRoomTest, OneRunMayHaveAllAndNoMore) {
  EXPECT_OK(Enter(0, "a", 60));
  EXPECT_OK(Enter(1, "a", 40));
  ExpectFull(Enter(2, "a", 1));
  ExpectFull(Enter(2, "b", 101));
  EXPECT_THAT(sent_away_, IsEmpty());
  places_.erase(0);
  EXPECT_EQ(used_, 40);
  EXPECT_OK(Enter(2, "a", 60));
}

TEST_F(WaitingRoomTest, TheLargestRunMakesRoomForOthers) {
  for (int call = 0; call < 9; ++call) EXPECT_OK(Enter(call, "a", 10));
  EXPECT_OK(Enter(9, "b", 10));
  EXPECT_OK(Enter(10, "c", 15));
  EXPECT_THAT(sent_away_, ElementsAre(0, 1));
  EXPECT_EQ(used_, 95);
  // An evicted place does not return its bytes a second time.
  places_.erase(0);
  places_.erase(1);
  EXPECT_EQ(used_, 95);
  places_.clear();
  EXPECT_EQ(used_, 0);
}

TEST_F(WaitingRoomTest, NobodyGoesForWhoThenHasMore) {
  EXPECT_OK(Enter(0, "a", 60));
  EXPECT_OK(Enter(1, "b", 40));
  ExpectFull(Enter(2, "c", 31));  // Half of what "a" has, and one more.
  ExpectFull(Enter(2, "b", 11));  // Two bytes more than "a" would keep.
  EXPECT_THAT(sent_away_, IsEmpty());
  EXPECT_OK(Enter(2, "c", 30));
  EXPECT_THAT(sent_away_, ElementsAre(0));
  EXPECT_EQ(used_, 70);
}

TEST_F(WaitingRoomTest, NoMoreGoThanAreNeeded) {
  const int64_t bytes[] = {40, 1, 10, 12, 10, 20};
  for (int call = 0; call < 6; ++call) EXPECT_OK(Enter(call, "a", bytes[call]));
  EXPECT_OK(Enter(6, "b", 9));  // 7 of these 9 bytes are free.
  EXPECT_THAT(sent_away_, ElementsAre(2));
  EXPECT_EQ(used_, 92);
}

TEST_F(WaitingRoomTest, TheLargestGoFirstWhereOneIsNotEnough) {
  const int64_t bytes[] = {10, 30, 5, 30, 5};
  for (int call = 0; call < 5; ++call) EXPECT_OK(Enter(call, "a", bytes[call]));
  EXPECT_OK(Enter(5, "b", 20));
  EXPECT_OK(Enter(6, "c", 40));
  EXPECT_THAT(sent_away_, ElementsAre(1, 0));
  EXPECT_EQ(used_, 100);
}

using testing::Fails;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

class RunQuotaTest : public ::testing::Test {
 protected:
  RunQuota Make(int64_t limit) {
    const auto stored = [this](absl::string_view run) -> absl::StatusOr<int64_t> {
      ++looks_;
      if (stored_now_) stored_now_();
      const auto found = stored_.find(std::string(run));
      if (found == stored_.end()) return absl::NotFoundError("no such run");
      return found->second;
    };
    return RunQuota(limit, clock_, stored, [this] { ++rejected_; });
  }
  static void ExpectOver(const absl::Status& status, const std::string& limit) {
    EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
    EXPECT_EQ(GetErrorDetail(status)->field, limit);
    EXPECT_GT(GetErrorDetail(status)->retry_after_ms.value_or(0), 0);
  }

  ManualClock clock_;
  std::map<std::string, int64_t> stored_;
  int looks_ = 0;
  std::atomic<int> rejected_ = 0;
  std::function<void()> stored_now_;  // Called by a look.
};

TEST_F(RunQuotaTest, WithoutLimitsNothingIsAsked) {
  RunQuota quota = Make(0);
  ASSERT_OK_AND_ASSIGN(const RunQuota::Hold hold, quota.Admit("a", int64_t{1} << 60));
  EXPECT_EQ(hold.bytes(), 0);
  EXPECT_EQ(looks_, 0);
}

TEST_F(RunQuotaTest, BytesOfEachRun) {
  RunQuota quota = Make(100);
  stored_["a"] = 40;
  ASSERT_OK_AND_ASSIGN(RunQuota::Hold all, quota.Admit("a", 60));
  ExpectOver(quota.Admit("a", 1).status(), "run-budget");
  ExpectOver(quota.Admit("a", 0).status(), "run-budget");  // At the limit even appends without cost are rejected.
  EXPECT_OK(quota.Admit("b", 100));
  ExpectOver(quota.Admit("c", 101).status(), "run-budget");
  EXPECT_EQ(looks_, 3);  // One look at each run.
  EXPECT_GT(rejected_, 0);
  // The 60 admitted bytes are in the store by now. Of the 100 stored bytes, 30 were released, which the quota learns
  // only at its next look.
  all.Commit();
  stored_["a"] = 70;
  ExpectOver(quota.Admit("a", 30).status(), "run-budget");
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_OK(quota.Admit("a", 30));
  EXPECT_EQ(looks_, 4);
}

TEST_F(RunQuotaTest, WhatIsUnderWayCountsForAsLongAsItIs) {
  RunQuota quota = Make(100);
  ASSERT_OK_AND_ASSIGN(RunQuota::Hold slow, quota.Admit("a", 60));
  for (int i = 0; i < 3; ++i) {
    clock_.Advance(std::chrono::seconds(2));
    ExpectOver(quota.Admit("a", 50).status(), "run-budget");
  }
  EXPECT_EQ(rejected_, 3);
  clock_.Advance(std::chrono::milliseconds(500));
  ExpectOver(quota.Admit("a", 50).status(), "run-budget");
  EXPECT_EQ(rejected_, 4);  // Although the store was asked before and after.
  // The bytes of a failed append are free at once.
  { const auto failed = quota.Admit("a", 40); }
  EXPECT_OK(quota.Admit("a", 40));
  slow.Split(50).Release();
  EXPECT_OK(quota.Admit("a", 90));
  // These bytes are committed while the store computes the run's size. The answer may not include them, so they still
  // count.
  stored_now_ = [&] { slow.Commit(); };
  clock_.Advance(std::chrono::seconds(2));
  ExpectOver(quota.Admit("a", 91).status(), "run-budget");
  stored_now_ = nullptr;
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_OK(quota.Admit("a", 100));
}

TEST_F(RunQuotaTest, ARunThatRestedIsCountedAgain) {
  RunQuota quota = Make(100);
  ASSERT_OK_AND_ASSIGN(RunQuota::Hold hold, quota.Admit("a", 60));
  hold.Commit();  // The bytes are no longer in the store.
  clock_.Advance(std::chrono::seconds(10));
  EXPECT_OK(quota.Admit("b", 1));
  EXPECT_OK(quota.Admit("a", 100));
  EXPECT_EQ(looks_, 3);
}

// Until a run's size is known, other appends wait for the query that measures it.
TEST_F(RunQuotaTest, TheFirstLookIsWaitedFor) {
  RunQuota quota = Make(100);
  stored_["a"] = 90;
  absl::Status other;
  std::thread second;
  stored_now_ = [&] {
    if (looks_ > 1) return;
    second = std::thread([&] { other = quota.Admit("a", 20).status(); });
    // Gives the other thread time to return, if it wrongly does not wait.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  ExpectOver(quota.Admit("a", 20).status(), "run-budget");
  second.join();
  ExpectOver(other, "run-budget");
  EXPECT_EQ(looks_, 1);
}

TEST_F(RunQuotaTest, HoldsArePartedAndJoined) {
  RunQuota quota = Make(100);
  ASSERT_OK_AND_ASSIGN(RunQuota::Hold hold, quota.AdmitUpTo("a", 1000));
  EXPECT_EQ(hold.bytes(), 94);
  ExpectOver(quota.AdmitUpTo("a", 1).status(),
             "run-budget");  // The last sixteenth is for the cost of appends beyond their payload.
  ASSERT_OK_AND_ASSIGN(RunQuota::Hold rest, quota.Admit("a", 6));
  hold.Merge(std::move(rest));
  {
    const RunQuota::Hold part = hold.Split(30);
    EXPECT_EQ(hold.bytes(), 70);
    ExpectOver(quota.Admit("a", 1).status(), "run-budget");
  }
  ASSERT_OK_AND_ASSIGN(RunQuota::Hold more, quota.AdmitUpTo("a", 1000));
  EXPECT_EQ(more.bytes(), 24);
  hold.Merge(std::move(more));
  EXPECT_EQ(hold.bytes(), 94);
}

}  // namespace
}  // namespace routing_replay::testing
