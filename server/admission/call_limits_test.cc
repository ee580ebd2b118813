#include "server/admission/call_limits.h"

#include <map>
#include <vector>

#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

TEST(ConnectionCallsTest, EachConnectionHasTwiceItsCalls) {
  ConnectionCalls calls(2);
  std::vector<std::unique_ptr<ConnectionCalls::Place>> places;
  const auto enter = [&](const char* peer) {
    auto place = calls.Enter(peer);
    if (place.ok()) places.push_back(*std::move(place));
    return place.status();
  };
  for (int i = 0; i < 4; ++i) EXPECT_OK(enter("ipv4:10.0.0.1:1"));
  const absl::Status refused = enter("ipv4:10.0.0.1:1");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(GetErrorDetail(refused)->field, "max-streams");
  EXPECT_OK(enter("ipv4:10.0.0.1:2"));
  places.erase(places.begin());
  EXPECT_OK(enter("ipv4:10.0.0.1:1"));
}

TEST(ConnectionCallsTest, UnixSocketsAreNotCounted) {
  ConnectionCalls calls(1);
  std::vector<std::unique_ptr<ConnectionCalls::Place>> places;
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
    EXPECT_EQ(GetErrorDetail(status)->field, kWaitingReads);
    EXPECT_GT(GetErrorDetail(status)->retry_after_ms.value_or(0), 0);
  }

  int64_t used_ = 0;
  WaitingRoom room_{100, [this](int64_t bytes) { used_ = bytes; }};
  std::vector<int> sent_away_;
  std::map<int, std::unique_ptr<WaitingRoom::Place>> places_;
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
  // What was sent away gives nothing back a second time.
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
  ExpectFull(Enter(2, "b", 11));  // As much as "a" keeps, and two more.
  EXPECT_THAT(sent_away_, IsEmpty());
  EXPECT_OK(Enter(2, "c", 30));
  EXPECT_THAT(sent_away_, ElementsAre(0));
  EXPECT_EQ(used_, 70);
}

TEST_F(WaitingRoomTest, NoMoreGoThanAreNeeded) {
  const int64_t bytes[] = {40, 1, 10, 12, 10, 20};
  for (int call = 0; call < 6; ++call) EXPECT_OK(Enter(call, "a", bytes[call]));
  EXPECT_OK(Enter(6, "b", 9));  // Two of them are free.
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

}  // namespace
}  // namespace routing_replay::testing
