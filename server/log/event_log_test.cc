#include "server/log/event_log.h"

#include <fcntl.h>
#include <grpc/support/log.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "routing_replay/v1/routing_replay.pb.h"
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

// Text that tries to break out of a log line.
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

TEST_F(EventLogTest, TextIsOneLineWithoutEscapesOfTerminals) {
  StartLogging(LogFormat::kText, &out_);
  LogEvent(LogLevel::kInfo, "call_rejected", kHostile, {{"method", kHostile}});
  const auto lines = Lines(out_);
  ASSERT_EQ(lines.size(), 1u) << out_.str();
  EXPECT_EQ(lines[0].find('\x1b'), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("info    call_rejected: a\\\"b"), std::string::npos) << lines[0];
}

TEST_F(EventLogTest, TheLevelHolds) {
  StartLogging(LogFormat::kJson, &out_);
  LogEvent(LogLevel::kDebug, "call", "");
  EXPECT_EQ(out_.str(), "");
  EXPECT_FALSE(IsLogged(LogLevel::kDebug));
  ASSERT_OK(SetLogLevel("debug"));
  EXPECT_EQ(GetLogLevel(), "debug");
  EXPECT_TRUE(IsLogged(LogLevel::kDebug));
  LogEvent(LogLevel::kDebug, "call", "");
  EXPECT_EQ(Lines(out_).size(), 1u);
  EXPECT_EQ(SetLogLevel("loud").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetLogLevel(), "debug");
}

constexpr std::chrono::seconds kPatience(60);

class LineQueueTest : public ::testing::Test {
 protected:
  LineQueueTest() {
    EXPECT_EQ(pipe(ends_), 0);
    queue_ = new LineQueue(ends_[1], 64 << 10, [this](int64_t lines) {
      told_ += lines;
      queue_->Push("the end\n");
    });
    static auto* const kept = new std::vector<LineQueue*>;  // Kept for the life of the process.
    kept->push_back(queue_);
  }
  // Reads until the text ends with `end`.
  std::string ReadUntil(const std::string& end) {
    std::string text;
    char buffer[4096];
    while (!absl::EndsWith(text, end)) {
      const ssize_t size = read(ends_[0], buffer, sizeof(buffer));
      if (size <= 0) break;
      text.append(buffer, static_cast<size_t>(size));
    }
    return text;
  }

  int ends_[2];
  std::atomic<int64_t> told_{0};
  LineQueue* queue_ = nullptr;
};

TEST_F(LineQueueTest, LinesComeInOrder) {
  std::string all;
  for (int i = 0; i < 100; ++i) {
    const std::string line = absl::StrCat(i, "\n");
    all += line;
    queue_->Push(line);
  }
  queue_->Flush(kPatience);
  EXPECT_EQ(ReadUntil("\n99\n"), all);
  EXPECT_EQ(queue_->dropped(), 0);
}

TEST_F(LineQueueTest, NobodyWaitsForAReaderAndTheOldestLinesGo) {
  constexpr int kLines = 1000;
  for (int i = 0; i < kLines; ++i) queue_->Push(absl::StrCat(std::string(1000, '.'), i, "\n"));
  queue_->Flush(std::chrono::milliseconds(1));  // Flush does not wait longer either.
  const int64_t dropped = queue_->dropped();
  EXPECT_GT(dropped, kLines / 2);
  EXPECT_LT(dropped, kLines);
  const std::string text = ReadUntil("the end\n");
  EXPECT_TRUE(absl::EndsWith(text, absl::StrCat(".", kLines - 1, "\nthe end\n")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), kLines - dropped + 1);
  EXPECT_EQ(told_, dropped);
}

TEST_F(LineQueueTest, AFileThatDoesNotWaitGetsAllToo) {
  ASSERT_EQ(fcntl(ends_[1], F_SETFL, O_NONBLOCK), 0);
  // A pipe has room for one such line and a part of the next.
  const std::string line = absl::StrCat(std::string(60000, '.'), "\n");
  queue_->Push(line);
  queue_->Flush(kPatience);
  queue_->Push(line);
  queue_->Push("last\n");
  EXPECT_EQ(ReadUntil("last\n"), line + line + "last\n");
  EXPECT_EQ(queue_->dropped(), 0);
}

TEST_F(LineQueueTest, AReaderThatIsGoneIsNoReader) {
  close(ends_[0]);
  queue_->Push("for nobody\n");
  queue_->Flush(kPatience);
}

using std::chrono::seconds;

TEST(RepeatFilterTest, OneLinePassesPerIntervalAndTellsWhatWasHeldBack) {
  ManualClock clock;
  RepeatFilter filter(clock, seconds(10));
  EXPECT_EQ(filter.Pass("a"), 0);
  EXPECT_EQ(filter.Pass("b"), 0);
  clock.Advance(seconds(9));
  EXPECT_EQ(filter.Pass("a"), std::nullopt);
  EXPECT_EQ(filter.Pass("a"), std::nullopt);
  clock.Advance(seconds(1));
  EXPECT_EQ(filter.Pass("a"), 2);
  EXPECT_EQ(filter.Pass("a"), std::nullopt);
}

TEST(LinesOfLibrariesTest, ATextThatIsNotUtf8TakesOneLineHoweverOftenItComes) {
  std::ostringstream out;
  StartLogging(LogFormat::kJson, &out);
  LogLinesOfLibraries();
  ::testing::internal::CaptureStderr();
  v1::SealRequest request;
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(request.ParseFromString("\x0A\x02\xFF\xFF"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  StartLogging(LogFormat::kText);
  const auto lines = Lines(out);
  ASSERT_EQ(lines.size(), 1u) << out.str();
  const auto line = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(line["event"], "protobuf");
  EXPECT_EQ(line["level"], "warning");
}

TEST(LinesOfLibrariesTest, OneOfManyOfGrpcComesInTheFormOfTheLog) {
  std::ostringstream out;
  StartLogging(LogFormat::kJson, &out);
  LogLinesOfLibraries();
  gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);  // As grpc_init() does.
  for (int i = 0; i < 100; ++i) gpr_log("src/core/place.cc", 7, GPR_LOG_SEVERITY_ERROR, "a \"line\"\nof %d", i);
  gpr_log("src/core/place.cc", 8, GPR_LOG_SEVERITY_ERROR, "another place");
  StartLogging(LogFormat::kText);
  std::istringstream lines(out.str());
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["event"], "grpc");
  EXPECT_EQ(first["level"], "warning");
  EXPECT_EQ(first["message"], "a \"line\"\nof 0");
  EXPECT_EQ(first["place"], "place.cc:7");
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(nlohmann::json::parse(line)["place"], "place.cc:8");
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

}  // namespace
}  // namespace routing_replay::testing
