#include "tests/quickstart/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/status_matchers.h"

namespace routing_replay::quickstart {
namespace {

constexpr std::chrono::seconds kLong(30);

TEST(ChildProcess, SpeaksLines) {
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start("cat", {"/bin/cat"}));
  ASSERT_OK(child->WriteLine("one"));
  ASSERT_OK(child->WriteLine("two"));
  ASSERT_OK_AND_ASSIGN(const std::string one, child->ReadLine(kLong));
  ASSERT_OK_AND_ASSIGN(const std::string two, child->ReadLine(kLong));
  EXPECT_EQ(one, "one");
  EXPECT_EQ(two, "two");
  EXPECT_TRUE(child->running());
  EXPECT_EQ(child->ReadLine(std::chrono::milliseconds(1)).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ChildProcess, ReportsAnEarlyEnd) {
  ASSERT_OK_AND_ASSIGN(const auto failed, ChildProcess::Start("false", {"/bin/false"}));
  EXPECT_EQ(failed->ReadLine(kLong).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(failed->WaitForSuccess(kLong).code(), absl::StatusCode::kInternal);
  ASSERT_OK_AND_ASSIGN(const auto absent, ChildProcess::Start("absent", {"/nonexistent"}));
  EXPECT_EQ(absent->WaitForSuccess(kLong).code(), absl::StatusCode::kInternal);
  ASSERT_OK_AND_ASSIGN(const auto good, ChildProcess::Start("true", {"/bin/true"}));
  EXPECT_OK(good->WaitForSuccess(kLong));
  EXPECT_FALSE(good->running());
}

TEST(ChildProcess, RunsAFunctionInACopy) {
  int32_t value = 1;
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Fork("copy", [&value] {
                         value = 2;
                         return write(STDOUT_FILENO, "done\n", 5) == 5 ? 0 : 1;
                       }));
  ASSERT_OK_AND_ASSIGN(const std::string line, child->ReadLine(kLong));
  EXPECT_EQ(line, "done");
  EXPECT_OK(child->WaitForSuccess(kLong));
  EXPECT_EQ(value, 1);
}

TEST(ChildProcess, EndsBySignal) {
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start("cat", {"/bin/cat"}));
  child->Terminate();
  EXPECT_EQ(child->WaitForSuccess(kLong).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace routing_replay::quickstart
