#include "server/operations/status_page.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

class StatusPageTest : public ::testing::Test {
 protected:
  StatusPageTest() {
    status_.version = "1.2.3";
    status_.store = "memory";
  }
  std::string Page() {
    status_.census = std::make_shared<const Census>(census_);
    return StatusPage({.status = status_,
                       .counters = counters_,
                       .troubles = troubles_,
                       .settings = settings_,
                       .now = std::chrono::system_clock::time_point(std::chrono::hours(24))});
  }

  ServerStatus status_;
  Census census_;
  std::vector<std::pair<std::string, int64_t>> counters_;
  std::vector<CallTrouble> troubles_;
  std::string settings_;
};

TEST_F(StatusPageTest, OfAServerThatHasJustStarted) {
  const std::string page = Page();
  EXPECT_NE(page.find("Version 1.2.3"), std::string::npos);
  EXPECT_NE(page.find("Nothing yet."), std::string::npos);
  EXPECT_NE(page.find("1970-01-02T00:00:00Z"), std::string::npos);
  EXPECT_EQ(page.find("{{"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

TEST_F(StatusPageTest, EveryValueIsEscaped) {
  const std::string hostile = "\"><script>alert(1)</script>{{version}}&'";
  status_.version = status_.store = settings_ = hostile;
  status_.listeners = {hostile};
  status_.ready = status_.store_health = absl::UnavailableError(hostile);
  census_.runs = {{.run = hostile, .by_version = {{1, {.samples = 1, .rows = 2, .bytes = 3}}}}};
  counters_ = {{absl::StrCat("routing_replay_append_refusals_total{reason=\"", hostile, "\"}"), 1}};
  troubles_ = {{.method = hostile, .code = hostile, .reason = hostile, .field = hostile}};
  const std::string page = Page();
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(page.find("{{version}}"), std::string::npos) << "what a value holds is not looked at";
}

TEST_F(StatusPageTest, TheLargestSharesAreShownAndTheOthersCounted) {
  census_.samples = 1000;
  census_.looked_at = 600;
  census_.runs = {{.run = "grpo"}};
  for (int i = 0; i < 60; ++i) census_.runs[0].by_version[i] = {.samples = 1, .rows = 1, .bytes = 1000 + i};
  const std::string page = Page();
  EXPECT_NE(page.find("Not shown: 10 rows with fewer bytes."), std::string::npos);
  EXPECT_NE(page.find("Counted from 600 of 1,000 samples."), std::string::npos);
  EXPECT_NE(page.find("<td class=\"text\">59</td>"), std::string::npos);
  EXPECT_NE(page.find("<td class=\"text\">10</td>"), std::string::npos);
  EXPECT_EQ(page.find("<td class=\"text\">9</td>"), std::string::npos);
  EXPECT_LT(page.find("<td class=\"text\">59</td>"), page.find("<td class=\"text\">10</td>"));
}

TEST_F(StatusPageTest, WhatIsEmptyOrOneReadsWell) {
  census_.runs = {{.run = "grpo", .samples = 1, .sealed_samples = 1, .stored_bytes = 100}};
  census_.runs[0].by_version[3] = {.samples = 1, .rows = 1, .bytes = 100};
  troubles_ = {{.method = "Append", .code = "FAILED_PRECONDITION", .reason = "SEALED"},
               {.method = "Put", .code = "INVALID_ARGUMENT", .reason = "FIELD", .field = "rows"}};
  const std::string page = Page();
  EXPECT_NE(page.find("1 sample, 1 sealed, 100 B"), std::string::npos);
  EXPECT_NE(page.find("FAILED_PRECONDITION SEALED</td>"), std::string::npos);
  EXPECT_NE(page.find("INVALID_ARGUMENT FIELD (rows)</td>"), std::string::npos);
  EXPECT_NE(page.find("memory · healthy"), std::string::npos);
}

TEST_F(StatusPageTest, RefusalsAreThoseThatHappened) {
  counters_ = {{"routing_replay_append_refusals_total{reason=\"GAP\"}", 3},
               {"routing_replay_append_refusals_total{reason=\"FIELD\"}", 0},
               {"routing_replay_appends_total", 9},
               {"routing_replay_credit_refusals_total", 1234},
               {"routing_replay_read_samples_total{status=\"NOT_FOUND\"}", 5},
               {"routing_replay_read_samples_total{status=\"OK\"}", 77}};
  const std::string page = Page();
  EXPECT_NE(page.find(">GAP</td>"), std::string::npos);
  EXPECT_NE(page.find(">NOT_FOUND</td>"), std::string::npos);
  EXPECT_NE(page.find("data-value=\"1234\">1,234</td>"), std::string::npos);
  EXPECT_EQ(page.find(">FIELD</td>"), std::string::npos);
  EXPECT_EQ(page.find(">OK</td>"), std::string::npos);
  EXPECT_LT(page.find("1,234</td>"), page.find(">NOT_FOUND</td>"));
}

}  // namespace
}  // namespace routing_replay::testing
