#include "client/appender/append_session.h"

#include <string>
#include <vector>

#include "client/call/cancellation.h"
#include "client/call/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Lines() {
  Cancellation over(Clock::Real().Now());
  const CallScope scope(&over);
  return TakeLogLines().value_or(std::vector<std::string>());
}

TEST(FailureLogTest, TellsSomeAndCountsTheRest) {
  Lines();
  FailureLog log("r");
  const absl::Status gap =
      MakeError(absl::StatusCode::kFailedPrecondition, "rows are missing", {.reason = Reason::kGap});
  const Clock::Time start = Clock::Real().Now();
  for (int i = 0; i < 25; ++i) log.Add("s", gap, start);
  std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 20);
  EXPECT_EQ(lines[0], "run r: an append of sample s failed: FAILED_PRECONDITION (GAP): rows are missing");
  log.Add("t", gap, start + std::chrono::seconds(10));
  EXPECT_THAT(Lines(), ElementsAre("run r: appends of 5 more samples failed", HasSubstr("sample t")));
  log.TellRest();
  EXPECT_THAT(Lines(), ElementsAre());
}

}  // namespace
}  // namespace routing_replay::client
