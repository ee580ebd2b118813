#include "server/operations/log/event_log.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

std::vector<std::string> Lines(const std::ostringstream& out) {
  std::vector<std::string> lines;
  std::istringstream in(out.str());
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// What a log must keep apart, whatever its caller gives it.
const char kHostile[] = "a\"b\\c\n{\"level\":\"error\"}\r\x1b[31m\xff \xc3\xa9";

class EventLogTest : public ::testing::Test {
 protected:
  EventLogTest() { EXPECT_OK(SetLogLevel("info")); }
  ~EventLogTest() override { StartLogging(LogFormat::kText); }
  std::ostringstream out_;
};

TEST_F(EventLogTest, AnEventIsOneJsonValueOnOneLine) {
  StartLogging(LogFormat::kJson, &out_);
  LogEvent(LogLevel::kWarning, "call_failed", kHostile, {{"method", kHostile}, {"held_back", int64_t{7}}});
  const auto lines = Lines(out_);
  ASSERT_EQ(lines.size(), 1u) << out_.str();
  const auto json = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["event"], "call_failed");
  EXPECT_EQ(json["held_back"], 7);
  const std::string expected = "a\"b\\c\n{\"level\":\"error\"}\r\x1b[31m\xef\xbf\xbd \xc3\xa9";
  EXPECT_EQ(json["message"], expected);
  EXPECT_EQ(json["method"], expected);
  EXPECT_TRUE(std::regex_match(json["ts"].get<std::string>(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")))
      << json["ts"];
}

TEST_F(EventLogTest, LinesOfOthersHaveTheSameForm) {
  StartLogging(LogFormat::kJson, &out_);
  spdlog::warn("{}", kHostile);
  const auto lines = Lines(out_);
  ASSERT_EQ(lines.size(), 1u) << out_.str();
  const auto json = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(json["event"], "log");
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json.size(), 4u);
}

TEST_F(EventLogTest, TextIsOneLineWithoutEscapesOfTerminals) {
  StartLogging(LogFormat::kText, &out_);
  LogEvent(LogLevel::kInfo, "call_refused", kHostile, {{"method", kHostile}});
  spdlog::info("{}", kHostile);
  const auto lines = Lines(out_);
  ASSERT_EQ(lines.size(), 2u) << out_.str();
  for (const std::string& line : lines) EXPECT_EQ(line.find('\x1b'), std::string::npos) << line;
  EXPECT_NE(lines[0].find("info    call_refused: a\\\"b"), std::string::npos) << lines[0];
}

TEST_F(EventLogTest, TheLevelHoldsForEventsAndForLinesOfOthers) {
  StartLogging(LogFormat::kJson, &out_);
  LogEvent(LogLevel::kDebug, "call", "");
  spdlog::debug("nothing");
  EXPECT_EQ(out_.str(), "");
  EXPECT_FALSE(IsLogged(LogLevel::kDebug));
  ASSERT_OK(SetLogLevel("debug"));
  EXPECT_EQ(GetLogLevel(), "debug");
  EXPECT_TRUE(IsLogged(LogLevel::kDebug));
  LogEvent(LogLevel::kDebug, "call", "");
  spdlog::debug("something");
  EXPECT_EQ(Lines(out_).size(), 2u);
  EXPECT_EQ(SetLogLevel("loud").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetLogLevel(), "debug");
}

}  // namespace
}  // namespace routing_replay::testing
