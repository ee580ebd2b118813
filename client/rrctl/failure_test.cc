#include "client/rrctl/failure.h"

#include <gtest/gtest.h>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

TEST(FailureTest, TextHasCodeReasonMessageAndFields) {
  EXPECT_EQ(FailureText(absl::UnavailableError("no\nserver")), "UNAVAILABLE: no\\x0Aserver");
  EXPECT_EQ(FailureText(MakeError(absl::StatusCode::kInvalidArgument, "payload: row 12: id 128",
                                  {.reason = Reason::kIdRange, .field = "payload", .row = 12, .layer = 3})),
            "INVALID_ARGUMENT (ID_RANGE): payload: row 12: id 128 [field=payload layer=3 row=12]");
}

TEST(FailureTest, ExitCodes) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError("")), 1);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("")), 3);
  EXPECT_EQ(ExitCodeFor(absl::CancelledError("")), 130);
}

}  // namespace
}  // namespace routing_replay
