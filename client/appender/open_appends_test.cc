#include "client/appender/append_session.h"

#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using testing::Fails;

absl::Status Failure(Reason reason, const std::string& field = "") {
  return MakeError(absl::StatusCode::kFailedPrecondition, "no", {.reason = reason, .field = field});
}

TEST(OpenAppendsTest, CountsBySampleAndAttempt) {
  OpenAppends open;
  open.Add(1, {"a", {}}, false);
  open.Add(2, {"a", 1}, false);
  open.Add(3, {"a", {}}, false);
  EXPECT_EQ(open.newest(), 3u);
  EXPECT_FALSE(open.Finish({.sequence = 1}));
  EXPECT_TRUE(open.Has({"a", {}}));
  EXPECT_FALSE(open.HasUpTo(1));
  EXPECT_TRUE(open.HasUpTo(2));
  EXPECT_FALSE(open.Finish({.sequence = 3}));
  EXPECT_FALSE(open.Has({"a", {}}));
  EXPECT_TRUE(open.Has({"a", 1}));
  EXPECT_FALSE(open.Has({"b", {}}));
  EXPECT_FALSE(open.Finish({.sequence = 2}));
  EXPECT_EQ(open.newest(), 0u);
  EXPECT_FALSE(open.TellTrouble({"a", {}}));
}

TEST(OpenAppendsTest, TroubleIsToldUntilThereIsMoreAndWhatWasNotMarkedGoesFirst) {
  OpenAppends open;
  open.Add(1, {"a", {}}, true);
  open.Add(2, {"a", {}}, false);
  open.Add(3, {"a", {}}, false);
  open.Finish({.sequence = 1});
  open.Finish({.sequence = 2, .status = Failure(Reason::kGap)});
  open.Finish({.sequence = 3, .status = Failure(Reason::kSealed)});
  const auto trouble = open.TellTrouble({"a", {}});
  ASSERT_TRUE(trouble);
  EXPECT_THAT(trouble->error, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGap));
  EXPECT_FALSE(trouble->marked);
  EXPECT_TRUE(open.TellTrouble({"a", {}}));
  open.Add(5, {"a", {}}, false);
  EXPECT_FALSE(open.TellTrouble({"a", {}}));
  open.Finish({.sequence = 5, .status = Failure(Reason::kGap)});
  open.Add(6, {"a", {}}, false);  // Keeps the failure, which TellTrouble has not reported yet.
  EXPECT_TRUE(open.TellTrouble({"a", {}}));

  open.Add(4, {"a", 7}, true);
  const auto dropped = open.TellTrouble({"a", 7});
  ASSERT_TRUE(dropped);
  EXPECT_THAT(dropped->error, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_TRUE(dropped->marked);
}

TEST(OpenAppendsTest, AnAppendOfAnEarlierAttemptIsStale) {
  OpenAppends open;
  open.Add(1, {"a", 0}, false);
  open.Add(2, {"a", {}}, false);
  open.Add(3, {"a", 0}, false);
  open.Add(4, {"a", 0}, false);
  EXPECT_TRUE(open.Finish({.sequence = 1, .status = Failure(Reason::kOldRevision, "append.restart_nonce")}));
  EXPECT_FALSE(open.Finish({.sequence = 2, .status = Failure(Reason::kOldRevision, "append.restart_nonce")}));
  EXPECT_FALSE(open.Finish({.sequence = 3, .status = Failure(Reason::kGap)}));
  EXPECT_FALSE(open.Finish({.sequence = 4, .status = Failure(Reason::kOldRevision, "append.revision")}));
}

TEST(OpenAppendsTest, ForgetsTheOldestTrouble) {
  OpenAppends open(2);
  for (uint64_t i = 0; i < 3; ++i) {
    open.Add(i + 1, {std::string(1, static_cast<char>('a' + i)), {}}, false);
    open.Finish({.sequence = i + 1, .status = Failure(Reason::kGap)});
  }
  EXPECT_FALSE(open.TellTrouble({"a", {}}));
  EXPECT_TRUE(open.TellTrouble({"b", {}}));
  EXPECT_TRUE(open.TellTrouble({"c", {}}));
}

}  // namespace
}  // namespace routing_replay::client
