#include "proto/wire/security.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "proto/wire/security.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

TEST(LocalAddressTest, LoopbackAndSocketsAreHere) {
  for (const char* here :
       {"127.0.0.1:7400", "127.8.9.1:0", "[::1]:7400", "localhost:1", "LOCALHOST:1", "unix:/run/rr", "unix:rr.sock"}) {
    EXPECT_TRUE(IsLocalAddress(here)) << here;
  }
}

TEST(LocalAddressTest, AllElseIsElsewhere) {
  for (const char* there :
       {"0.0.0.0:7400", "[::]:7400", "10.0.0.1:7400", "[fe80::1]:7400", "server:7400", "localhost.example.org:7400",
        "127.0.0.1.example.org:7400", "127.0.0.1", "128.0.0.1:1", "", ":7400", "[::ffff:10.0.0.1]:1", "unixes:1"}) {
    EXPECT_FALSE(IsLocalAddress(there)) << there;
  }
}

class ChangingFileTest : public ::testing::Test {
 protected:
  void SetUp() override { std::remove(path_.c_str()); }
  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  // Looks at the file once and returns its current text. If Look returns nothing, the file has not changed, and the
  // text is that of the last look.
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
    // Size and modification time may not show this change: the length stays the same, and the clock of the file system
    // may not have ticked since the last write.
    const std::string text = std::to_string(1000 + i);
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
