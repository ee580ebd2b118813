#include "client/call/log.h"

#include <string>
#include <thread>

#include "client/call/cancellation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace routing_replay::client {
namespace {

using ::testing::ElementsAre;

// Calls TakeLogLines, without waiting. The log keeps lines from the first such call on.
void Ask() {
  Cancellation over(Clock::Real().Now());
  const CallScope scope(&over);
  EXPECT_TRUE(absl::IsDeadlineExceeded(TakeLogLines().status()));
}

TEST(LogTest, LinesAreWaitedForAndTakenOnce) {
  Log("before anybody asked");
  Ask();
  Cancellation call;
  std::thread asking([&] {
    const CallScope scope(&call);
    EXPECT_THAT(*TakeLogLines(), ElementsAre("first"));
    EXPECT_TRUE(absl::IsCancelled(TakeLogLines().status()));
  });
  std::thread cancelling([&] {
    Log("first");
    call.Cancel();
  });
  cancelling.join();
  asking.join();
}

TEST(LogTest, TheOldestGoWhereNobodyTakesThem) {
  Ask();
  for (int i = 0; i < 1001; ++i) Log(std::to_string(i));
  const auto lines = TakeLogLines();
  ASSERT_EQ(lines->size(), 1000);
  EXPECT_EQ(lines->front(), "1");
}

}  // namespace
}  // namespace routing_replay::client
