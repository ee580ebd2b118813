#include "client/rrctl/application.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

class UsageTest : public ::testing::Test {
 protected:
  UsageTest() {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.add_option("--endpoint", text_);
    CLI::App* stat = app_.add_subcommand("stat");
    stat->add_option("RUN", text_)->required();
    stat->add_flag("--trainer", flag_);
    app_.add_subcommand("status");
    app_.add_subcommand("rm")->callback([] { throw CLI::ValidationError("rm", "name samples,\nor give --all"); });
  }

  std::string Said(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    try {
      app_.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
      const absl::Status status = UsageError(app_, error);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      return std::string(status.message());
    }
    return "nothing";
  }

  CLI::App app_{"test", "test"};
  std::string text_;
  bool flag_ = false;
};

TEST_F(UsageTest, WhatIsWrongIsNamed) {
  const std::string unknown = "there is no command, flag or further argument ";
  EXPECT_EQ(Said({"stats", "r"}), unknown + "'stats' (see test --help)");
  EXPECT_EQ(Said({"stat", "r", "--trainr"}), unknown + "'--trainr' (see test --help)");
  EXPECT_EQ(Said({"stat", "r", "s"}), unknown + "'s' (see test --help)");
  EXPECT_EQ(Said({"stat"}), "RUN is required (see test --help)");
  EXPECT_EQ(Said({"rm"}), "rm: name samples, or give --all (see test --help)");
}

TEST(FailureTest, TextHasCodeReasonMessageAndFields) {
  EXPECT_EQ(FailureText(absl::UnavailableError("no\nserver")), "UNAVAILABLE: no\\x0Aserver");
  EXPECT_EQ(FailureText(MakeError(absl::StatusCode::kInvalidArgument, "payload: row 12: id 128",
                                  {.reason = Reason::kIdRange, .field = "payload", .row = 12, .layer = 3})),
            "INVALID_ARGUMENT (ID_RANGE): payload: row 12: id 128 [field=payload layer=3 row=12]");
}

TEST(FailureTest, ExitCodes) {
  EXPECT_EQ(ExitCodeFor(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError("")), 1);
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), 1);
  EXPECT_EQ(ExitCodeFor(MakeError(absl::StatusCode::kInvalidArgument, "no port", {.field = "endpoint"})), 2);
  for (const char* setting : {"cacert", "cert", "key", "token_file", "--run"}) {
    EXPECT_EQ(ExitCodeFor(Invalid(setting, "cannot read x")), 2) << setting;
  }
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("")), 3);
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError(""), kExitUndecided), 4);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError(""), kExitUndecided), 3);
  EXPECT_EQ(ExitCodeFor(absl::OkStatus(), kExitUndecided), 0);
}

TEST(FailureTest, WhereNoServerAnswersDoctorIsNamed) {
  const absl::Status away = absl::UnavailableError("Socket closed");
  EXPECT_EQ(HintFor(away, ExitCodeFor(away)), "; run `rrctl doctor` for the cause and the fix");
  const absl::Status nobody = absl::UnauthenticatedError("authorization: none");
  EXPECT_EQ(HintFor(nobody, ExitCodeFor(nobody)), "; give the token with --token-file");
  EXPECT_EQ(HintFor(absl::NotFoundError(""), kExitFailed), "");
}

}  // namespace
}  // namespace routing_replay::client
