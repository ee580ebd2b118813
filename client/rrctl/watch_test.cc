#include "client/rrctl/watch.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Answers from a list, with a clock that only sleeping moves.
class WatchTest : public ::testing::Test {
 protected:
  absl::Status Run(std::vector<absl::StatusOr<Document>> answers, Format format, std::optional<int64_t> count) {
    size_t next = 0;
    std::chrono::system_clock::time_point now{};
    WatchSurroundings surroundings{
        .now = [&] { return now; }, .sleep = [&](milliseconds time) { now += time; }, .terminal = nullptr};
    if (terminal_) surroundings.terminal = [this] { return *terminal_; };
    Output output(out_, format, Style(false));
    return Watch([&] { return answers.at(next++); }, Layout::kRecords, {.interval = seconds(2), .count = count},
                 surroundings, output);
  }

  std::ostringstream out_;
  std::optional<TerminalSize> terminal_;
};

Document Server(int64_t rows) { return {{"rows", rows}, {"uptime_ms", rows}, {"counters", {{"bytes_total", 1}}}}; }

TEST_F(WatchTest, JsonIsALinePerAnswer) {
  EXPECT_OK(Run({Server(1), Server(2)}, Format::kJson, 2));
  EXPECT_EQ(out_.str(),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"result\":{\"rows\":1,\"uptime_ms\":1,"
            "\"counters\":{\"bytes_total\":1}}}\n"
            "{\"time\":\"1970-01-01T00:00:02.000Z\",\"result\":{\"rows\":2,\"uptime_ms\":2,"
            "\"counters\":{\"bytes_total\":1}}}\n");
}

TEST_F(WatchTest, ChangesPerSecondAreShown) {
  EXPECT_OK(Run({Server(1), Server(4)}, Format::kTable, 2));
  EXPECT_EQ(out_.str(),
            "1970-01-01T00:00:00.000Z\nrows    1\nuptime  1 ms\ncounters\n  bytes_total  1\n\n"
            "1970-01-01T00:00:02.000Z\nrows    4  +1.5/s\nuptime  4 ms\ncounters\n  bytes_total  1\n\n");
}

TEST_F(WatchTest, ATerminalIsDrawnOver) {
  terminal_ = TerminalSize{.rows = 24, .columns = 80};
  EXPECT_OK(Run({Document{{"a", 1}}, Document{{"a", 1}, {"b", 2}}, Document{{"a", 1}}}, Format::kTable, 3));
  EXPECT_EQ(out_.str(),
            "1970-01-01T00:00:00.000Z\na  1\n"
            "\033[2A\r\033[J1970-01-01T00:00:02.000Z\na  1\nb  2\n"
            "\033[3A\r\033[J1970-01-01T00:00:04.000Z\na  1\n");
}

TEST_F(WatchTest, ASmallTerminalCutsTheFrame) {
  terminal_ = TerminalSize{.rows = 4, .columns = 6};
  EXPECT_OK(Run({Document{{"a", 1}, {"b", "long value"}, {"c", 3}, {"d", 4}}}, Format::kTable, 1));
  EXPECT_EQ(out_.str(), "1970-0\na  1\n… 3 mo\n");
}

TEST_F(WatchTest, TheFirstFailureEndsIt) {
  EXPECT_EQ(Run({absl::UnavailableError("down")}, Format::kJson, std::nullopt).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(out_.str(), "");
}

TEST_F(WatchTest, AServerThatIsAwayIsAskedAgain) {
  EXPECT_OK(Run({Document{{"a", 1}}, absl::UnavailableError("down"), Document{{"a", 2}}}, Format::kJson, 3));
  EXPECT_EQ(out_.str(),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"result\":{\"a\":1}}\n"
            "{\"time\":\"1970-01-01T00:00:02.000Z\","
            "\"error\":{\"code\":14,\"code_name\":\"UNAVAILABLE\",\"message\":\"down\"}}\n"
            "{\"time\":\"1970-01-01T00:00:04.000Z\",\"result\":{\"a\":2}}\n");
}

TEST_F(WatchTest, ARefusalAndTheLastFailureEndIt) {
  EXPECT_EQ(Run({Document{{"a", 1}}, absl::NotFoundError("released")}, Format::kJson, std::nullopt).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Run({Document{{"a", 1}}, absl::UnavailableError("down")}, Format::kJson, 2).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(WatchTest, AReaderThatIsGoneEndsIt) {
  out_.setstate(std::ios::badbit);
  EXPECT_EQ(Run({Document{{"a", 1}}}, Format::kJson, std::nullopt).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace routing_replay::client
