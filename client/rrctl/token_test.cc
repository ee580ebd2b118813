#include "client/rrctl/token.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "proto/wire/clock.h"
#include "server/security/access_control.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using testing::Fails;

constexpr uid_t kSomebody = 65534;

int64_t FilesIn(const std::string& directory) {
  return std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator());
}

// The server accepts what rrctl makes.
TEST(TokenTest, TheServerTakesTheEntry) {
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/tokens";
  ASSERT_OK_AND_ASSIGN(const Document made, MakeToken({.name = "rollout: \"a\"",
                                                       .run_prefixes = {"grpo-", "x"},
                                                       .scopes = {"put"},
                                                       .expires = "2999-01-31",
                                                       .max_runs = 7}));
  std::ofstream(path) << made["entry"].get<std::string>() << "\n";
  const auto control = AccessControl::Create(path, Clock::Real(), [](const auto&) {});
  ASSERT_OK(control);
  const std::string token = made["token"];
  ASSERT_OK_AND_ASSIGN(const Permissions permissions, (*control)->Identify("Bearer " + token));
  EXPECT_EQ(permissions.LimitOnRuns(Scope::kPut, "grpo-1")->max_runs, 7);
  EXPECT_OK((*control)->Check("Bearer " + token, Scope::kPut, "grpo-1"));
  EXPECT_FALSE((*control)->Check("Bearer " + token, Scope::kRead, "grpo-1").ok());
  EXPECT_FALSE((*control)->Check("Bearer " + token, Scope::kPut, "y").ok());
}

// The server never sees a part of an entry, and nothing else in the file changes.
TEST(TokenTest, AnEntryIsAddedByARename) {
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/tokens", link = directory.path() + "/link";
  TokenOptions options{.name = "a", .run_prefixes = {"a-"}, .scopes = {"read"}, .append = path};
  ASSERT_OK_AND_ASSIGN(const Document first, MakeToken(options));
  struct stat before, after;
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
  options.append = link;
  ASSERT_OK_AND_ASSIGN(const Document second, MakeToken(options));
  ASSERT_EQ(lstat(path.c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino);
  EXPECT_EQ(after.st_mode, before.st_mode);
  const auto control = AccessControl::Create(path, Clock::Real(), [](const auto&) {});
  ASSERT_OK(control);
  for (const Document& made : {first, second}) {
    EXPECT_OK((*control)->Check("Bearer " + made["token"].get<std::string>(), Scope::kRead, "a-1"));
  }
  std::ofstream(path) << "[]";
  EXPECT_EQ(MakeToken(options).status().code(), absl::StatusCode::kInvalidArgument);
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A limit on the size of files lets only a part of the last write through, as a disk does that becomes full.
TEST(TokenTest, WhatDoesNotFitChangesNothing) {
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/tokens";
  TokenOptions options{.name = "a", .run_prefixes = {"a-"}, .scopes = {"read"}, .append = path};
  ASSERT_OK(MakeToken(options));
  const std::string before = TextOf(path);
  rlimit unlimited;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  const absl::Cleanup restore = [&] { setrlimit(RLIMIT_FSIZE, &unlimited); };
  signal(SIGXFSZ, SIG_IGN);
  const auto limit = [&](rlim_t bytes) {
    const rlimit limited{bytes, unlimited.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  };
  limit(before.size() + 10);
  EXPECT_FALSE(MakeToken(options).ok());
  EXPECT_EQ(TextOf(path), before);
  options.append = "";
  options.file = directory.path() + "/secret";
  limit(10);
  EXPECT_FALSE(MakeToken(options).ok());
  EXPECT_EQ(FilesIn(directory.path()), 1);
}

// The file must keep its owner and group, because the server that reads it usually runs as another user than the one
// who edits it.
TEST(TokenTest, OwnerAndGroupStay) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can change the owner of a file";
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/tokens";
  const TokenOptions options{.name = "a", .run_prefixes = {"a-"}, .scopes = {"read"}, .append = path};
  ASSERT_OK(MakeToken(options));
  ASSERT_EQ(chown(path.c_str(), kSomebody, kSomebody + 1), 0);
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  ASSERT_OK(MakeToken(options));
  struct stat status;
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, kSomebody);
  EXPECT_EQ(status.st_gid, kSomebody + 1);
  EXPECT_EQ(status.st_mode & ALLPERMS, 0640u);
}

TEST(TokenTest, AFileThatCannotKeepItsOwnerStaysAsItIs) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can act as another user for a while";
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/tokens", secret = directory.path() + "/token";
  TokenOptions options{.name = "a", .run_prefixes = {"a-"}, .scopes = {"read"}, .append = path};
  ASSERT_OK(MakeToken(options));
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  ASSERT_EQ(chown(directory.path().c_str(), kSomebody, kSomebody), 0);
  const std::string before = TextOf(path);
  options.file = secret;
  ASSERT_EQ(seteuid(kSomebody), 0);
  const absl::Status status = MakeToken(options).status();
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
  EXPECT_EQ(TextOf(path), before);
  EXPECT_NE(access(secret.c_str(), F_OK), 0);
  EXPECT_EQ(FilesIn(directory.path()), 1);
}

// If a wrong entry were written, the server would reject every later version of the file, even one that revokes a
// token.
TEST(TokenTest, WhatTheServerRejectsIsNotWritten) {
  const testing::ScratchDirectory directory;
  TokenOptions options{.name = "a",
                       .run_prefixes = {"a-"},
                       .scopes = {"read"},
                       .expires = "tomorrow",
                       .file = directory.path() + "/token",
                       .append = directory.path() + "/tokens"};
  EXPECT_THAT(MakeToken(options).status().message(), ::testing::HasSubstr("expires: 'tomorrow' must be a date"));
  options.expires.clear();
  options.scopes = {"write"};
  EXPECT_THAT(MakeToken(options).status().message(), ::testing::HasSubstr("scopes: 'write'"));
  EXPECT_EQ(FilesIn(directory.path()), 0);
  // The wrong entry may be one that was already in the file.
  options.scopes = {"read"};
  std::ofstream(options.append) << "- {name: b}\n";
  EXPECT_THAT(MakeToken(options).status().message(), ::testing::HasSubstr("tokens: entry 1: sha256"));
  EXPECT_EQ(TextOf(options.append), "- {name: b}\n");
  EXPECT_EQ(FilesIn(directory.path()), 1);
}

TEST(TokenTest, EntriesThatAreAddedAtOnceAreAllThere) {
  constexpr int kAtOnce = 20;
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/tokens";
  std::vector<std::thread> writers;
  for (int i = 0; i < kAtOnce; ++i) {
    writers.emplace_back([&, i] {
      EXPECT_OK(MakeToken({.name = std::to_string(i), .run_prefixes = {"a-"}, .scopes = {"read"}, .append = path}));
    });
  }
  for (std::thread& writer : writers) writer.join();
  ASSERT_OK_AND_ASSIGN(const std::vector<TokenGrant> grants, ParseTokenFile(TextOf(path)));
  EXPECT_EQ(grants.size(), size_t{kAtOnce});
}

TEST(TokenTest, APrefixIsOneThatARunCanHave) {
  const testing::ScratchDirectory directory;
  TokenOptions options{
      .name = "a", .run_prefixes = {"a-", "a b"}, .scopes = {"read"}, .file = directory.path() + "/token"};
  EXPECT_EQ(MakeToken(options).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(access(options.file.c_str(), F_OK), 0);
  options.run_prefixes = {"a-", ""};
  EXPECT_OK(MakeToken(options));
}

TEST(TokenTest, AFileIsForItsOwnerAndNotReplaced) {
  const testing::ScratchDirectory directory;
  const TokenOptions options{
      .name = "a", .run_prefixes = {""}, .scopes = {"read"}, .file = directory.path() + "/token"};
  ASSERT_OK_AND_ASSIGN(const Document made, MakeToken(options));
  EXPECT_FALSE(made.contains("token"));
  struct stat status;
  ASSERT_EQ(stat(options.file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  std::string line;
  std::getline(std::ifstream(options.file), line);
  EXPECT_EQ(line.size(), 46u);
  EXPECT_EQ(MakeToken(options).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace routing_replay::client
