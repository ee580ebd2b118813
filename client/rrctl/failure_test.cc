#include "client/rrctl/failure.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
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
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), 1);
  EXPECT_EQ(ExitCodeFor(MakeError(absl::StatusCode::kInvalidArgument, "no port", {.field = "endpoint"})), 2);
  for (const char* setting : {"cacert", "cert", "key", "token_file", "--run"}) {
    EXPECT_EQ(ExitCodeFor(Invalid(setting, "cannot read x")), 2) << setting;
  }
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCodeFor(absl::DeadlineExceededError("")), 3);
  EXPECT_EQ(ExitCodeFor(absl::CancelledError("")), 130);
  EXPECT_EQ(ExitCodeFor(absl::NotFoundError(""), kExitUndecided), 4);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError(""), kExitUndecided), 3);
  EXPECT_EQ(ExitCodeFor(absl::OkStatus(), kExitUndecided), 0);
}

TEST(FailureTest, WhereNoServerAnswersDoctorIsNamed) {
  const absl::Status away = absl::UnavailableError("Socket closed");
  EXPECT_EQ(HintFor(away, ExitCodeFor(away)), "; `rrctl doctor` says why and what to do");
  const absl::Status nobody = absl::UnauthenticatedError("authorization: none");
  EXPECT_EQ(HintFor(nobody, ExitCodeFor(nobody)), "; --token-file names a file with the token to show");
  EXPECT_EQ(HintFor(absl::NotFoundError(""), kExitFailed), "");
}

// The rows of the table that begins with "| exit code", without the marks of code.
std::vector<std::string> ReadmeTable() {
  std::ifstream file("client/rrctl/README.md");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  std::vector<std::string> rows;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    inside = absl::StartsWith(line, "| exit code") || (inside && absl::StartsWith(line, "|"));
    if (inside) rows.push_back(absl::StrReplaceAll(line, {{"`", ""}}));
  }
  return rows;
}

TEST(FailureTest, TheReadmeHasTheExitCodes) {
  std::vector<std::string> expected = {"| exit code | means |", "|---|---|"};
  for (const ExitMeaning& exit : ExitMeanings()) {
    expected.push_back(absl::StrCat("| ", static_cast<int>(exit.code), " | ", exit.meaning, " |"));
  }
  EXPECT_EQ(ReadmeTable(), expected);
}

}  // namespace
}  // namespace routing_replay::client
