#include "server/operations/call_record.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

class CallJournalTest : public ::testing::Test {
 protected:
  CallJournalTest() {
    StartLogging(LogFormat::kJson, &out_);
    EXPECT_OK(SetLogLevel("info"));
  }
  ~CallJournalTest() override { StartLogging(LogFormat::kText); }

  std::vector<nlohmann::json> Lines() {
    std::vector<nlohmann::json> lines;
    std::istringstream in(out_.str());
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    out_.str("");
    return lines;
  }

  void Note(absl::string_view method, const absl::Status& status, const LogFields& identity) {
    journal_.Note(method, status, [&] { return identity; });
  }

  ManualClock clock_;
  CallJournal journal_{clock_};
  std::ostringstream out_;
};

absl::Status NoSample(const std::string& sample) {
  return MakeError(absl::StatusCode::kNotFound, absl::StrCat("no sample ", sample),
                   {.reason = Reason::kNoSample, .field = "sample", .sample = sample});
}

TEST_F(CallJournalTest, ARejectedCallIsToldWithoutIdsOfSamples) {
  Note("Seal", NoSample("secret-name"), {{"peer", "p1"}});
  EXPECT_EQ(out_.str().find("secret-name"), std::string::npos) << out_.str();
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["event"], "call_rejected");
  EXPECT_EQ(lines[0]["level"], "info");
  EXPECT_EQ(lines[0]["method"], "Seal");
  EXPECT_EQ(lines[0]["code"], "NOT_FOUND");
  EXPECT_EQ(lines[0]["reason"], ReasonName(Reason::kNoSample));
  EXPECT_EQ(lines[0]["field"], "sample");
  EXPECT_EQ(lines[0]["peer"], "p1");
}

TEST_F(CallJournalTest, AtDebugEveryCallIsToldInFull) {
  ASSERT_OK(SetLogLevel("debug"));
  for (int i = 0; i < 3; ++i) Note("Seal", NoSample("a"), {});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2]["message"], "no sample a");
}

TEST_F(CallJournalTest, RepeatsAreHeldBackAndCounted) {
  for (int i = 0; i < 100; ++i) Note("Seal", NoSample(absl::StrCat("s", i)), {});
  Note("Stat", NoSample("a"), {});
  EXPECT_EQ(Lines().size(), 2u);
  clock_.Advance(CallJournal::kInterval);
  Note("Seal", NoSample("b"), {});
  auto lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["held_back"], 99);
}

TEST_F(CallJournalTest, FailuresOfTheServerAreWarningsAndADrainIsNone) {
  Note("Read", absl::UnavailableError("redis"), {});
  Note("Read", MakeError(absl::StatusCode::kUnavailable, "", {.reason = Reason::kDraining}), {});
  Note("Read", absl::CancelledError("the reader is gone"), {});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["event"], "call_failed");
  EXPECT_EQ(lines[0]["level"], "warning");
  EXPECT_EQ(lines[1]["event"], "call_rejected");
}

TEST_F(CallJournalTest, TheLatestKindsAreKeptTheLastOneFirst) {
  for (int i = 0; i < 3; ++i) Note("Seal", NoSample("a"), {});
  for (size_t i = 0; i < CallJournal::kKinds + 5; ++i) {
    clock_.Advance(std::chrono::seconds(1));
    Note("Put", Invalid(Reason::kField, absl::StrCat("f", i), "bad"), {});
    Note("Seal", NoSample("a"), {});
  }
  const auto latest = journal_.Latest();
  ASSERT_EQ(latest.size(), CallJournal::kKinds);
  EXPECT_EQ(latest[0].method, "Seal");
  EXPECT_EQ(latest[0].count, 3 + static_cast<int64_t>(CallJournal::kKinds) + 5);
  EXPECT_EQ(latest[1].field, absl::StrCat("f", CallJournal::kKinds + 4));
  EXPECT_EQ(latest[0].last, clock_.TimeOfDay());
}

}  // namespace
}  // namespace routing_replay::testing
