#include "client/rrctl/file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
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
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
  EXPECT_EQ(WriteFile(folder + "/none/x", "x").code(), absl::StatusCode::kInvalidArgument);
}

// Whoever else may write into the folder chooses no file of ours.
TEST(FileTest, LinksAreNotFollowed) {
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/page", victim = directory.path() + "/victim";
  ASSERT_OK(WriteFile(victim, "old"));
  std::filesystem::create_symlink(victim, path + ".part");
  std::filesystem::create_symlink(victim, path);
  ASSERT_OK(WriteFile(path, "new"));
  EXPECT_EQ(TextOf(victim), "old");
  EXPECT_EQ(TextOf(path), "new");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
}

}  // namespace
}  // namespace routing_replay::client
