#include "server/operations/endpoint_file.h"

#include <filesystem>
#include <fstream>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

class EndpointFileTest : public ::testing::Test {
 protected:
  EndpointFileTest() : path_(std::filesystem::path(::testing::TempDir()) / "endpoint") {}
  ~EndpointFileTest() override { std::filesystem::remove(path_); }

  std::string Line() const {
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);
    return line;
  }

  const std::filesystem::path path_;
};

TEST_F(EndpointFileTest, IsThereWhileItLives) {
  {
    ASSERT_OK_AND_ASSIGN(const auto file, EndpointFile::Write(path_, "localhost:7400"));
    EXPECT_EQ(Line(), "localhost:7400");
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".part"));
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
}

}  // namespace
}  // namespace routing_replay
