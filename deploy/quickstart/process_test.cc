#include "deploy/quickstart/process.h"

#include <gtest/gtest.h>

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

TEST(ChildProcess, EndsBySignal) {
  ASSERT_OK_AND_ASSIGN(const auto child, ChildProcess::Start("cat", {"/bin/cat"}));
  child->Terminate();
  EXPECT_EQ(child->WaitForSuccess(kLong).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace routing_replay::quickstart
