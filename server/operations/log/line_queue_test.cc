#include "server/operations/log/line_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace routing_replay::server {
namespace {

constexpr std::chrono::seconds kPatience(60);

class LineQueueTest : public ::testing::Test {
 protected:
  LineQueueTest() {
    EXPECT_EQ(pipe(ends_), 0);
    queue_ = new LineQueue(ends_[1], 64 << 10, [this](int64_t lines) {
      told_ += lines;
      queue_->Push("the end\n");
    });
    static auto* const kept = new std::vector<LineQueue*>;  // As long as the process.
    kept->push_back(queue_);
  }
  // Until a line that ends so.
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
  queue_->Flush(std::chrono::milliseconds(1));  // Nor at the end.
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
  const std::string line = absl::StrCat(std::string(60000, '.'), "\n");  // A pipe takes one, and a bit of the next.
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

}  // namespace
}  // namespace routing_replay::server
