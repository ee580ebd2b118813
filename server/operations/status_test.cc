#include "server/operations/status.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

// Returns the family with this name, or null if there is none.
const prometheus::MetricFamily* Find(const std::vector<prometheus::MetricFamily>& families, const std::string& name) {
  for (const auto& family : families) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

TEST(FiguresTest, ReadinessIsAMetric) {
  for (const absl::Status& ready : {absl::OkStatus(), absl::UnavailableError("a listener does not answer")}) {
    const auto families = FiguresOf({.ready = ready});
    const auto* family = Find(families, "routing_replay_ready");
    ASSERT_NE(family, nullptr);
    EXPECT_EQ(family->metric[0].gauge.value, ready.ok() ? 1 : 0);
  }
}

TEST(ServerStatusTest, AStatusIsOneJsonValueWhateverItsNamesAre) {
  const ServerStatus status{.version = "1", .store = "m\"\n\xff", .ready = absl::UnavailableError("draining")};
  const Series counters = {{"x{a=\"b\"}", 1}};
  const std::vector<CallTrouble> troubles = {{.method = "Read", .count = 2}};
  const std::vector<RunState> runs = {{.info = {.run = "a"}, .samples = 3, .sealed_samples = 2, .committed_rows = 30}};
  const std::string text = StatusJson(status, runs, counters, troubles);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["ready"], false);
  EXPECT_EQ(json["not_ready_because"], "draining");
  ASSERT_EQ(json["runs"].size(), 1u);
  EXPECT_EQ(json["runs"][0]["run"], "a");
  EXPECT_EQ(json["runs"][0]["samples"], 3);
  EXPECT_EQ(json["runs"][0]["committed_rows"], 30);
  EXPECT_EQ(json["counters"]["x{a=\"b\"}"], 1);
  EXPECT_EQ(json["troubles"][0]["count"], 2);
  EXPECT_FALSE(nlohmann::json::parse(StatusJson(status, std::nullopt, counters, troubles)).contains("runs"));
}

TEST(ProcessUsageTest, WhatAProcessHasAtLeast) {
  const ProcessUsage usage = LookAtProcess();
  EXPECT_GE(usage.threads, 1);
  EXPECT_GT(usage.resident_bytes, 64 << 10);
  EXPECT_GT(usage.virtual_bytes, usage.resident_bytes);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(usage.max_fds, static_cast<int64_t>(limit.rlim_cur));
}

TEST(ProcessUsageTest, DescriptorsAreCounted) {
  const int64_t before = LookAtProcess().open_fds;
  const int fd = open("/dev/null", O_RDONLY);
  EXPECT_EQ(LookAtProcess().open_fds, before + 1);
  close(fd);
  EXPECT_EQ(LookAtProcess().open_fds, before);
}

class StatusPageTest : public ::testing::Test {
 protected:
  StatusPageTest() {
    status_.version = "1.2.3";
    status_.store = "memory";
  }
  std::string Page() {
    return StatusPage({.status = status_,
                       .runs = runs_,
                       .counters = counters_,
                       .troubles = troubles_,
                       .settings = settings_,
                       .now = std::chrono::system_clock::time_point(std::chrono::hours(24))});
  }

  ServerStatus status_;
  std::vector<RunState> runs_;
  Series counters_;
  std::vector<CallTrouble> troubles_;
  std::string settings_;
};

TEST_F(StatusPageTest, OfAServerThatHasJustStarted) {
  const std::string page = Page();
  EXPECT_NE(page.find("Version 1.2.3"), std::string::npos);
  EXPECT_NE(page.find("None."), std::string::npos);
  EXPECT_NE(page.find("1970-01-02T00:00:00.000Z"), std::string::npos);
  EXPECT_EQ(page.find("{{"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

TEST_F(StatusPageTest, WhichWayStreamsCome) {
  EXPECT_EQ(Page().find("Streams so far"), std::string::npos);
  counters_ = {{"routing_replay_streams_total{transport=\"grpc\"}", 3},
               {"routing_replay_streams_total{transport=\"shm\"}", 1234}};
  EXPECT_NE(Page().find("<dd>shm 1,234, grpc 3</dd>"), std::string::npos);
}

TEST_F(StatusPageTest, EveryValueIsEscaped) {
  const std::string hostile = "\"><script>alert(1)</script>{{version}}&'";
  status_.version = status_.store = settings_ = hostile;
  status_.listeners = {hostile};
  status_.ready = status_.store_health = absl::UnavailableError(hostile);
  runs_ = {{.info = {.run = hostile}, .samples = 1}};
  counters_ = {{absl::StrCat("routing_replay_append_rejections_total{reason=\"", hostile, "\"}"), 1}};
  troubles_ = {{.method = hostile, .code = hostile, .reason = hostile, .field = hostile}};
  const std::string page = Page();
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(page.find("{{version}}"), std::string::npos) << "placeholders inside a value must stay as they are";
}

TEST_F(StatusPageTest, TheLargestRunsAreShownAndTheOthersCounted) {
  for (int i = 0; i < 60; ++i) runs_.push_back({.info = {.run = absl::StrCat("run-", i)}, .stored_bytes = 1000 + i});
  const std::string page = Page();
  EXPECT_NE(page.find("Not shown: 10 runs with fewer bytes."), std::string::npos);
  EXPECT_NE(page.find(">run-59</td>"), std::string::npos);
  EXPECT_NE(page.find(">run-10</td>"), std::string::npos);
  EXPECT_EQ(page.find(">run-9</td>"), std::string::npos);
  EXPECT_LT(page.find(">run-59</td>"), page.find(">run-10</td>"));
}

TEST_F(StatusPageTest, WhatIsEmptyOrOneReadsWell) {
  runs_ = {{.info = {.run = "grpo"}, .samples = 1, .sealed_samples = 1, .committed_rows = 1, .stored_bytes = 100}};
  troubles_ = {{.method = "Append", .code = "FAILED_PRECONDITION", .reason = "SEALED"},
               {.method = "Put", .code = "INVALID_ARGUMENT", .reason = "FIELD", .field = "rows"}};
  const std::string page = Page();
  EXPECT_NE(page.find("<td>1</td><td>1</td><td>1</td><td>100 B</td>"), std::string::npos);
  EXPECT_NE(page.find("FAILED_PRECONDITION SEALED</td>"), std::string::npos);
  EXPECT_NE(page.find("INVALID_ARGUMENT FIELD (rows)</td>"), std::string::npos);
  EXPECT_NE(page.find("memory · healthy"), std::string::npos);
}

TEST_F(StatusPageTest, RejectionsAreThoseThatHappened) {
  counters_ = {{"routing_replay_append_rejections_total{reason=\"GAP\"}", 3},
               {"routing_replay_append_rejections_total{reason=\"FIELD\"}", 0},
               {"routing_replay_appends_total", 9},
               {"routing_replay_credit_rejections_total", 1234},
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
