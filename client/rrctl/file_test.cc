#include "client/rrctl/file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

std::string TextOf(const std::string& path) {
  std::istringstream none;
  const auto bytes = ReadFile(path, none);
  return bytes.ok() ? std::string(bytes->begin(), bytes->end()) : std::string(bytes.status().message());
}

TEST(FileTest, WhatIsWrittenIsRead) {
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/page";
  EXPECT_OK(WriteFile(path, "one"));
  EXPECT_OK(WriteFile(path, std::string("two\0", 4)));
  EXPECT_EQ(TextOf(path), std::string("two\0", 4));
  std::istringstream input("three");
  EXPECT_EQ(ReadFile("-", input)->size(), 5u);
}

TEST(FileTest, AFailureLeavesNothingBehind) {
  const testing::ScratchDirectory directory;
  const std::string folder = directory.path() + "/folder";
  std::filesystem::create_directory(folder);
  EXPECT_EQ(WriteFile(folder, "x").code(), absl::StatusCode::kDataLoss);
  EXPECT_FALSE(std::filesystem::exists(folder + ".part"));
  EXPECT_EQ(WriteFile(folder + "/none/x", "x").code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace routing_replay
