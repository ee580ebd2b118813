#include "server/store/spill/spill.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using Bytes = std::vector<uint8_t>;

size_t FilesIn(const std::string& path) {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files += entry.path().extension() != ".lock";
  return files;
}

TEST(SpillDiskTest, GivesBackWhatWasWritten) {
  const ScratchDirectory directory;
  ASSERT_OK_AND_ASSIGN(const auto disk, OpenSpillDirectory(directory.path() + "/made/for/it"));
  const Bytes a(1000, 1), b(70'000, 2), none;
  EXPECT_OK(disk->Write("7", 0, {a, none, b}));
  EXPECT_OK(disk->Write("7", 71'000, {b}));
  Bytes read(2000);
  ASSERT_OK(disk->Read("7", 0, absl::MakeSpan(read)));
  EXPECT_TRUE(std::equal(read.begin(), read.begin() + 1000, a.begin()));
  EXPECT_EQ(read[1000], 2);
  EXPECT_OK(disk->Read("7", 141'000 - 2000, absl::MakeSpan(read)));
  EXPECT_TRUE(absl::IsDataLoss(disk->Read("7", 141'000 - 1999, absl::MakeSpan(read))));
  EXPECT_TRUE(absl::IsDataLoss(disk->Read("8", 0, absl::MakeSpan(read))));
  disk->Remove("7");
  EXPECT_TRUE(absl::IsDataLoss(disk->Read("7", 0, absl::MakeSpan(read))));
  EXPECT_EQ(FilesIn(directory.path() + "/made/for/it"), 0u);
}

TEST(SpillDiskTest, RemovesWhatAProcessBeforeLeftAndNothingElse) {
  const ScratchDirectory directory;
  const Bytes bytes(10);
  {
    ASSERT_OK_AND_ASSIGN(const auto disk, OpenSpillDirectory(directory.path()));
    ASSERT_OK(disk->Write("1", 0, {bytes}));
  }
  std::ofstream(directory.path() + "/thesis.tex") << "\\begin";
  ASSERT_OK(OpenSpillDirectory(directory.path()));
  EXPECT_EQ(FilesIn(directory.path()), 1u);
  EXPECT_TRUE(std::filesystem::exists(directory.path() + "/thesis.tex"));
}

TEST(SpillDiskTest, OneProcessAtATimeHasADirectory) {
  const ScratchDirectory directory;
  ASSERT_OK_AND_ASSIGN(auto disk, OpenSpillDirectory(directory.path()));
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenSpillDirectory(directory.path()).status()));
  disk.reset();
  EXPECT_OK(OpenSpillDirectory(directory.path()));
}

TEST(SpillDiskTest, WhatIsNoDirectoryIsRejected) {
  const ScratchDirectory directory;
  std::ofstream(directory.path() + "/file") << "x";
  EXPECT_TRUE(absl::IsUnavailable(OpenSpillDirectory(directory.path() + "/file").status()));
  EXPECT_TRUE(absl::IsUnavailable(OpenSpillDirectory(directory.path() + "/file/below").status()));
}

TEST(SpillDiskTest, ADirectoryThatWentAwayFailsTyped) {
  const ScratchDirectory directory;
  ASSERT_OK_AND_ASSIGN(const auto disk, OpenSpillDirectory(directory.path() + "/gone"));
  std::filesystem::remove_all(directory.path() + "/gone");
  Bytes bytes(10);
  EXPECT_TRUE(absl::IsUnavailable(disk->Write("1", 0, {bytes})));
  EXPECT_TRUE(absl::IsDataLoss(disk->Read("1", 0, absl::MakeSpan(bytes))));
}

// /dev/full answers every write as a full disk does.
TEST(SpillDiskTest, AFullDiskIsExhausted) {
  const ScratchDirectory directory;
  ASSERT_OK_AND_ASSIGN(const auto disk, OpenSpillDirectory(directory.path()));
  std::filesystem::create_symlink("/dev/full", directory.path() + "/routing-replay-spill-1");
  const Bytes bytes(10);
  EXPECT_TRUE(absl::IsResourceExhausted(disk->Write("1", 0, {bytes})));
}

}  // namespace
}  // namespace routing_replay::testing
