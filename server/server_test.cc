#include "server/server.h"

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

  // Starts a server that reports `address` to clients and writes it to `file`.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& file, const std::string& address) {
    return Server::Start({.listen = {"127.0.0.1:0"}, .advertise = address, .endpoint_file = file});
  }

  std::string Line() const {
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);
    return line;
  }

  // The number of files with this prefix.
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

// In a folder where everybody may write, an attacker may have created a link with the name of the temporary file.
TEST_F(EndpointFileTest, NothingIsWrittenThroughALink) {
  const std::filesystem::path victim = directory_.path() + "/victim";
  std::filesystem::create_symlink(victim, path_);
  std::filesystem::create_symlink(victim, path_.string() + ".part");
  ASSERT_OK_AND_ASSIGN(const auto server, Start(path_, "localhost:7400"));
  EXPECT_EQ(Line(), "localhost:7400");
  EXPECT_FALSE(std::filesystem::exists(victim));
}

TEST_F(EndpointFileTest, IsThereUntilTheServerDrains) {
  ASSERT_OK_AND_ASSIGN(auto server, Start(path_, "localhost:7400"));
  EXPECT_EQ(Line(), "localhost:7400");
  EXPECT_EQ(Files(), 1);
  EXPECT_EQ(std::filesystem::status(path_).permissions(), std::filesystem::perms(0644));
  server->Drain();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(EndpointFileTest, ThatOfAnotherServerStays) {
  // In the second round both servers write the same address. The first server must still recognize that the file is not
  // its own.
  for (const char* address : {"localhost:7401", "localhost:7400"}) {
    ASSERT_OK_AND_ASSIGN(auto first, Start(path_, "localhost:7400"));
    ASSERT_OK_AND_ASSIGN(auto second, Start(path_, address));
    first.reset();
    EXPECT_EQ(Line(), address);
    second.reset();
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
}

TEST_F(EndpointFileTest, GoneBeforeTheServer) {
  ASSERT_OK_AND_ASSIGN(auto server, Start(path_, "localhost:7400"));
  std::filesystem::remove(path_);
  server.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(EndpointFileTest, NowhereToWrite) {
  EXPECT_FALSE(Start("/nowhere/endpoint", "localhost:7400").ok());
  std::filesystem::create_directory(path_);
  EXPECT_FALSE(Start(path_, "localhost:7400").ok());
  EXPECT_EQ(Files(), 1);
}

}  // namespace
}  // namespace routing_replay::server
