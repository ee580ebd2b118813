#include "server/admission/run_quota.h"

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

class RunQuotaTest : public ::testing::Test {
 protected:
  RunQuota Make(const RunQuota::Limits& limits) {
    return RunQuota(limits, clock_, [this]() -> absl::StatusOr<std::map<std::string, int64_t>> {
      ++looks_;
      return stored_;
    });
  }
  static void ExpectOver(const absl::Status& status, const std::string& limit) {
    EXPECT_THAT(status, Fails(kExhausted, Reason::kOverBudget));
    EXPECT_EQ(GetErrorDetail(status)->field, limit);
    EXPECT_GT(GetErrorDetail(status)->retry_after_ms.value_or(0), 0);
  }

  ManualClock clock_;
  std::map<std::string, int64_t> stored_;
  int looks_ = 0;
};

TEST_F(RunQuotaTest, WithoutLimitsNothingIsAsked) {
  RunQuota quota = Make({});
  EXPECT_OK(quota.Admit("a", int64_t{1} << 60));
  EXPECT_EQ(*quota.Open("a"), nullptr);
  EXPECT_EQ(looks_, 0);
}

TEST_F(RunQuotaTest, BytesOfEachRun) {
  RunQuota quota = Make({.bytes = 100});
  stored_["a"] = 40;
  EXPECT_OK(quota.Admit("a", 60));
  ExpectOver(quota.Admit("a", 1), kRunBudget);
  EXPECT_OK(quota.Admit("a", 0));
  EXPECT_OK(quota.Admit("b", 100));
  ExpectOver(quota.Admit("c", 101), kRunBudget);
  EXPECT_EQ(looks_, 1);
  // What was admitted is stored by now, and some of it released.
  stored_["a"] = 70;
  ExpectOver(quota.Admit("a", 30), kRunBudget);
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_OK(quota.Admit("a", 30));
  EXPECT_EQ(looks_, 2);
}

TEST_F(RunQuotaTest, StreamsOfEachRun) {
  RunQuota quota = Make({.streams = 2});
  auto first = quota.Open("a"), second = quota.Open("a");
  ASSERT_OK(first);
  ASSERT_OK(second);
  ExpectOver(quota.Open("a").status(), kRunStreams);
  EXPECT_OK(quota.Open("b"));
  first->reset();
  EXPECT_OK(quota.Open("a"));
}

}  // namespace
}  // namespace routing_replay
