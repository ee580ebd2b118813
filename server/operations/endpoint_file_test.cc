#include "server/operations/endpoint_file.h"

#include <filesystem>
#include <fstream>

#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using testing::ScratchDirectory;

class EndpointFileTest : public ::testing::Test {
 protected:
  EndpointFileTest() : path_(directory_.path() + "/endpoint") {}

  std::string Line() const {
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);
    return line;
  }

  // That are called like it.
  int Files() const {
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_.parent_path())) {
      files += entry.path().filename().string().starts_with(path_.filename().string()) ? 1 : 0;
    }
    return files;
  }

  const ScratchDirectory directory_;
  const std::filesystem::path path_;
};

// In a folder where everybody may write, somebody may have laid a link for the file that becomes it.
TEST_F(EndpointFileTest, NothingIsWrittenThroughALink) {
  const std::filesystem::path victim = directory_.path() + "/victim";
  std::filesystem::create_symlink(victim, path_);
  std::filesystem::create_symlink(victim, path_.string() + ".part");
  ASSERT_OK_AND_ASSIGN(const auto file, EndpointFile::Write(path_, "localhost:7400"));
  EXPECT_EQ(Line(), "localhost:7400");
  EXPECT_FALSE(std::filesystem::exists(victim));
}

TEST_F(EndpointFileTest, IsThereWhileItLives) {
  {
    ASSERT_OK_AND_ASSIGN(const auto file, EndpointFile::Write(path_, "localhost:7400"));
    EXPECT_EQ(Line(), "localhost:7400");
    EXPECT_EQ(Files(), 1);
    EXPECT_EQ(std::filesystem::status(path_).permissions(), std::filesystem::perms(0644));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(EndpointFileTest, ThatOfAnotherOneStays) {
  // Also one with the same address.
  for (const char* address : {"localhost:7401", "localhost:7400"}) {
    ASSERT_OK_AND_ASSIGN(auto first, EndpointFile::Write(path_, "localhost:7400"));
    ASSERT_OK_AND_ASSIGN(auto second, EndpointFile::Write(path_, address));
    first.reset();
    EXPECT_EQ(Line(), address);
    second.reset();
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
}

TEST_F(EndpointFileTest, WrittenIntoByOthersOrGone) {
  ASSERT_OK_AND_ASSIGN(auto file, EndpointFile::Write(path_, "localhost:7400"));
  std::ofstream(path_) << "elsewhere:1\n";
  file.reset();
  EXPECT_EQ(Line(), "elsewhere:1");
  ASSERT_OK_AND_ASSIGN(file, EndpointFile::Write(path_, "localhost:7400"));
  std::filesystem::remove(path_);
  file.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(EndpointFileTest, NowhereToWrite) {
  EXPECT_FALSE(EndpointFile::Write("/nowhere/endpoint", "localhost:7400").ok());
  std::filesystem::create_directory(path_);
  EXPECT_FALSE(EndpointFile::Write(path_, "localhost:7400").ok());
  EXPECT_EQ(Files(), 1);
}

}  // namespace
}  // namespace routing_replay::server
