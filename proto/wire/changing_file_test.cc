#include "proto/wire/changing_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

class ChangingFileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::remove(path_.c_str()); }
  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  // What the next look that shows anything shows; what was there before may show again for a moment.
  std::string Present() {
    const auto text = file_.Look();
    EXPECT_OK(text);
    if (*text) last_ = **text;
    return last_;
  }

  const std::string path_ = ::testing::TempDir() + "/changing_file";
  ChangingFile file_{path_};
  std::string last_;
};

TEST_F(ChangingFileTest, ChangesInPlaceShowAtOnce) {
  for (int i = 0; i < 100; ++i) {
    const std::string text = std::to_string(1000 + i);  // Of one length, within one tick of the file system's clock.
    Write(path_, text);
    ASSERT_EQ(Present(), text);
  }
}

TEST_F(ChangingFileTest, ARenameAndALinkShow) {
  Write(path_ + ".1", "one");
  Write(path_ + ".2", "two");
  ASSERT_EQ(std::rename((path_ + ".1").c_str(), path_.c_str()), 0);
  EXPECT_EQ(Present(), "one");
  std::remove(path_.c_str());
  ASSERT_EQ(symlink((path_ + ".2").c_str(), path_.c_str()), 0);
  EXPECT_EQ(Present(), "two");
}

TEST_F(ChangingFileTest, WhatCannotBeReadIsToldOnce) {
  EXPECT_EQ(file_.Look().status().code(), absl::StatusCode::kNotFound);
  ASSERT_OK_AND_ASSIGN(const std::optional<std::string> again, file_.Look());
  EXPECT_FALSE(again.has_value());
  Write(path_, "there");
  EXPECT_EQ(Present(), "there");
  ChangingFile directory("/");
  EXPECT_FALSE(directory.Look().ok());
  Write(path_, std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(file_.Look().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace routing_replay
