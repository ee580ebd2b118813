#include "client/rrctl/token.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "proto/wire/clock.h"
#include "server/security/access_control.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

// What is made is what the server takes.
TEST(TokenTest, TheServerTakesTheEntry) {
  const testing::ScratchDirectory directory;
  const std::string path = directory.path() + "/tokens";
  ASSERT_OK_AND_ASSIGN(const Document made, MakeToken({.name = "rollout: \"a\"",
                                                       .run_prefixes = {"grpo-", "x"},
                                                       .scopes = {"put"},
                                                       .expires = "2999-01-31",
                                                       .max_runs = 7}));
  std::ofstream(path) << made["entry"].get<std::string>() << "\n";
  const auto control = AccessControl::Create(path, Clock::Real(), [](const std::string&) {});
  ASSERT_OK(control);
  const std::string token = made["token"];
  ASSERT_OK_AND_ASSIGN(const Permissions permissions, (*control)->Identify("Bearer " + token));
  EXPECT_EQ(permissions.LimitOnRuns(Scope::kPut, "grpo-1")->max_runs, 7);
  EXPECT_OK((*control)->Check("Bearer " + token, Scope::kPut, "grpo-1"));
  EXPECT_FALSE((*control)->Check("Bearer " + token, Scope::kRead, "grpo-1").ok());
  EXPECT_FALSE((*control)->Check("Bearer " + token, Scope::kPut, "y").ok());
}

// The server never sees a part of an entry, and the file stays what it was beside.
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
  const auto control = AccessControl::Create(path, Clock::Real(), [](const std::string&) {});
  ASSERT_OK(control);
  for (const Document& made : {first, second}) {
    EXPECT_OK((*control)->Check("Bearer " + made["token"].get<std::string>(), Scope::kRead, "a-1"));
  }
  std::ofstream(path) << "[]";
  EXPECT_EQ(MakeToken(options).status().code(), absl::StatusCode::kInvalidArgument);
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

TEST(TokenTest, NothingIsGivenTwice) {
  for (const TokenOptions& options :
       {TokenOptions{.name = "a", .run_prefixes = {"a-"}, .scopes = {"put", "read", "put"}},
        TokenOptions{.name = "a", .run_prefixes = {"a-", "b-", "a-"}, .scopes = {"put"}}}) {
    EXPECT_THAT(MakeToken(options).status(), Fails(absl::StatusCode::kInvalidArgument, Reason::kField));
  }
}

TEST(TokenTest, APrefixWithoutASeparatorIsPointedOut) {
  EXPECT_EQ(HintFor({.run_prefixes = {"", "grpo-", "team/a/", "x."}}), "");
  const std::string hint = HintFor({.run_prefixes = {"a-", "grpo"}});
  EXPECT_NE(hint.find("--run grpo covers"), std::string::npos);
  EXPECT_NE(hint.find("grpo2"), std::string::npos);
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
}  // namespace routing_replay
