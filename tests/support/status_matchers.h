// gtest helpers for absl::Status and its ErrorDetail.
#ifndef TESTS_SUPPORT_STATUS_MATCHERS_H_
#define TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::testing {

inline const absl::Status& GetStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << GetStatus(arg);
  return GetStatus(arg).ok();
}
// Code and ErrorDetail.reason.
MATCHER_P2(Fails, code, reason, std::string("fails with ") + ReasonName(reason)) {
  const absl::Status& status = GetStatus(arg);
  const auto detail = GetErrorDetail(status);
  *result_listener << status << " reason " << (detail ? ReasonName(detail->reason) : "absent");
  return status.code() == code && detail && detail->reason == reason;
}

#define RR_CONCAT_INNER(a, b) a##b
#define RR_CONCAT(a, b) RR_CONCAT_INNER(a, b)
#define EXPECT_OK(expression) EXPECT_THAT((expression), ::routing_replay::testing::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT((expression), ::routing_replay::testing::IsOk())
// ASSERT_OK_AND_ASSIGN(auto x, F()): fails the test unless F() is OK.
#define ASSERT_OK_AND_ASSIGN(lhs, expression) \
  ASSERT_OK_AND_ASSIGN_IMPL(RR_CONCAT(status_or_, __LINE__), lhs, expression)
// NOLINTBEGIN(bugprone-macro-parentheses): lhs is a declaration.
#define ASSERT_OK_AND_ASSIGN_IMPL(status_or, lhs, expression) \
  auto status_or = (expression);                              \
  ASSERT_OK(status_or);                                       \
  lhs = *std::move(status_or)
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_STATUS_MATCHERS_H_
