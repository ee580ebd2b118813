#include "server/service/sample_check.h"

#include <gtest/gtest.h>

namespace routing_replay::server {
namespace {

SampleStatus Check(const SampleState& state, const SampleRead& asked) {
  return CheckSample(state, asked, /*until_seal=*/true, [](const TokenCheck&) { return std::nullopt; }).status;
}

// At once: nobody waits for rows that were there and will not come by themselves.
TEST(SampleCheckTest, LostRowsAreSaidToBeLost) {
  SampleState state{.sample = "s", .committed_rows = 64, .lost_end = 100};
  EXPECT_EQ(Check(state, {.sample = "s"}), SampleStatus::kLost);
  EXPECT_EQ(Check(state, {.sample = "s", .num_tokens = 101}), SampleStatus::kLost);
  EXPECT_EQ(Check(state, {.sample = "s", .rows = {{0, 10}}, .num_tokens = 101}), SampleStatus::kLost);
  EXPECT_EQ(Check(state, {.sample = "s", .rows = {{60, 65}}}), SampleStatus::kLost);
  EXPECT_EQ(Check(state, {.sample = "s", .rows = {{0, 64}}}), SampleStatus::kOk);
  state.committed_rows = 100;
  state.num_tokens = 101;
  EXPECT_EQ(Check(state, {.sample = "s", .num_tokens = 101}), SampleStatus::kOk);
}

TEST(SampleCheckTest, TokensThatNobodyKnowsAreNotOtherOnes) {
  const SampleState state{.sample = "s", .committed_rows = 64};
  const SampleRead asked{.sample = "s", .rows = {{0, 64}}, .token_checks = {{20, 1}}};
  const auto status = [&](std::optional<bool> same) {
    return CheckSample(state, asked, /*until_seal=*/true, [same](const TokenCheck&) { return same; }).status;
  };
  EXPECT_EQ(status(true), SampleStatus::kOk);
  EXPECT_EQ(status(false), SampleStatus::kTokensMismatch);
  EXPECT_EQ(status(std::nullopt), SampleStatus::kTokensNotKnown);
}

}  // namespace
}  // namespace routing_replay::server
