#include "server/operations/status.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/store/conformance/conformance.h"
#include "server/store/conformance/trajectory.h"
#include "server/store/memory/memory_store.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

class CensusTest : public ::testing::Test {
 protected:
  RunInfo Open(const std::string& name) { return *store_->OpenRun(name, &TestGeometry(), std::nullopt); }
  void Append(const RunInfo& run, const std::string& sample, RowRange rows, int64_t version) {
    EXPECT_OK(
        store_->Append(MakeAppend(run, {.run = run.run, .sample = sample, .rows = rows, .weight_version = version})));
  }
  Census Take(int64_t limit = 1000) {
    return *TakeCensus(*store_, limit, [] { return false; });
  }

  ManualClock clock_;
  ByteBudget budget_{int64_t{64} << 20};
  const std::unique_ptr<Store> store_ = NewMemoryStore({.clock = &clock_, .budget = &budget_});
};

TEST_F(CensusTest, AnEmptyStore) {
  const Census census = Take();
  EXPECT_TRUE(census.runs.empty());
  EXPECT_EQ(census.oldest_idle_ms, -1);
}

TEST_F(CensusTest, SamplesAreCountedByRunAndWeightVersion) {
  const RunInfo a = Open("a"), b = Open("b");
  Append(a, "1", {0, 30}, 7);
  clock_.Advance(std::chrono::seconds(5));
  Append(a, "2", {0, 10}, 7);
  Append(a, "2", {10, 40}, 8);
  Append(b, "1", {0, 10}, kUnknownWeightVersion);
  const Census census = Take();
  EXPECT_EQ(census.oldest_idle_ms, 5000);
  EXPECT_EQ(census.samples, 3);
  EXPECT_EQ(census.looked_at, 3);
  ASSERT_EQ(census.runs.size(), 2u);
  const Census::Run& run = census.runs[0];
  EXPECT_EQ(run.run, "a");
  EXPECT_EQ(run.samples, 2);
  EXPECT_EQ(run.committed_rows, 70);
  ASSERT_EQ(run.by_version.size(), 2u);
  EXPECT_EQ(run.by_version.at(7).samples, 2);
  EXPECT_EQ(run.by_version.at(7).rows, 40);
  EXPECT_EQ(run.by_version.at(8).samples, 1);
  EXPECT_EQ(run.by_version.at(8).rows, 30);
  // Each sample's bytes are divided among its weight versions and rounded down, so the sum may be a few bytes too
  // small.
  EXPECT_NEAR(run.by_version.at(7).bytes + run.by_version.at(8).bytes, run.stored_bytes, 3);
  EXPECT_EQ(census.runs[1].by_version.at(kUnknownWeightVersion).rows, 10);
}

TEST_F(CensusTest, TheNumberOfSamplesIsBoundedPerRun) {
  const RunInfo a = Open("a"), b = Open("b");
  for (int i = 0; i < 10; ++i) Append(a, "s" + std::to_string(i), {0, 10}, 1);
  Append(b, "s", {0, 10}, 1);
  const Census census = Take(8);
  EXPECT_EQ(census.runs[0].looked_at, 4);
  EXPECT_EQ(census.runs[0].samples, 10);
  EXPECT_EQ(census.runs[1].looked_at, 1);
  EXPECT_EQ(census.looked_at, 5);
  EXPECT_EQ(census.samples, 11);
}

TEST_F(CensusTest, ItStopsWhenItIsTold) {
  Append(Open("a"), "s", {0, 10}, 1);
  EXPECT_EQ(TakeCensus(*store_, 10, [] { return true; }).status().code(), absl::StatusCode::kCancelled);
}

// Returns the family with this name, or null if there is none.
const prometheus::MetricFamily* Find(const std::vector<prometheus::MetricFamily>& families, const std::string& name) {
  for (const auto& family : families) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

TEST_F(CensusTest, ReadinessIsAMetric) {
  for (const absl::Status& ready : {absl::OkStatus(), absl::UnavailableError("a listener does not answer")}) {
    const auto families = FiguresOf({.ready = ready});
    const auto* family = Find(families, "routing_replay_ready");
    ASSERT_NE(family, nullptr);
    EXPECT_EQ(family->metric[0].gauge.value, ready.ok() ? 1 : 0);
  }
}

TEST_F(CensusTest, AStatusIsOneJsonValueWhateverItsNamesAre) {
  Append(Open("a"), "s", {0, 10}, 3);
  ServerStatus status{.version = "1", .store = "m\"\n\xff", .ready = absl::UnavailableError("draining")};
  status.census = std::make_shared<const Census>(Take());
  const std::string text = StatusJson(status, {{"x{a=\"b\"}", 1}}, {{.method = "Read", .count = 2}});
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["ready"], false);
  EXPECT_EQ(json["not_ready_because"], "draining");
  EXPECT_EQ(json["runs"][0]["weight_versions"][0]["weight_version"], 3);
  EXPECT_EQ(json["counters"]["x{a=\"b\"}"], 1);
  EXPECT_EQ(json["troubles"][0]["count"], 2);
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
    status_.census = std::make_shared<const Census>(census_);
    return StatusPage({.status = status_,
                       .counters = counters_,
                       .troubles = troubles_,
                       .settings = settings_,
                       .now = std::chrono::system_clock::time_point(std::chrono::hours(24))});
  }

  ServerStatus status_;
  Census census_;
  Series counters_;
  std::vector<CallTrouble> troubles_;
  std::string settings_;
};

TEST_F(StatusPageTest, OfAServerThatHasJustStarted) {
  const std::string page = Page();
  EXPECT_NE(page.find("Version 1.2.3"), std::string::npos);
  EXPECT_NE(page.find("Nothing yet."), std::string::npos);
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
  census_.runs = {{.run = hostile, .by_version = {{1, {.samples = 1, .rows = 2, .bytes = 3}}}}};
  counters_ = {{absl::StrCat("routing_replay_append_rejections_total{reason=\"", hostile, "\"}"), 1}};
  troubles_ = {{.method = hostile, .code = hostile, .reason = hostile, .field = hostile}};
  const std::string page = Page();
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(page.find("{{version}}"), std::string::npos) << "placeholders inside a value must stay as they are";
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
