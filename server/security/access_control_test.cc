#include "server/security/access_control.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/stat.h>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/store/store_rules.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

using testing::Fails;
constexpr auto kUnauthenticated = absl::StatusCode::kUnauthenticated;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

std::string Hash(const std::string& token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash), sizeof(hash)});
}

std::string Entry(const std::string& token, const std::string& runs, const std::string& scopes,
                  const std::string& more = "") {
  return absl::StrCat("- {name: n, sha256: ", Hash(token), ", runs: ", runs, ", scopes: ", scopes, more, "}\n");
}

class AccessControlTest : public ::testing::Test {
 protected:
  // Replaces the file by renaming, as a careful operator does.
  void Write(const std::string& text) {
    std::ofstream(path_ + ".new") << text;
    ASSERT_EQ(std::rename((path_ + ".new").c_str(), path_.c_str()), 0);
  }
  void Start(const std::string& text) {
    Write(text);
    auto control = AccessControl::Create(path_, clock_, [&](const absl::Status& status) { Reloaded(status); });
    ASSERT_OK(control);
    control_ = *std::move(control);
  }
  void Reloaded(const absl::Status& status) {
    ++reloads_;
    if (!status.ok()) warnings_.emplace_back(status.message());
  }
  absl::Status Check(const std::string& token, ScopeSet scope, const std::string& run) {
    return control_->Check("Bearer " + token, scope, run);
  }

  const std::string path_ = ::testing::TempDir() + "/access_control_test.tokens";
  ManualClock clock_;
  std::vector<std::string> warnings_;
  size_t reloads_ = 0;  // Successful and rejected ones.
  std::unique_ptr<AccessControl> control_;
};

TEST_F(AccessControlTest, WithoutAFileAllIsAllowed) {
  const AccessControl open;
  EXPECT_OK(open.Check("", Scope::kAdmin, "any"));
  EXPECT_OK(open.Identify("nonsense")->CheckAnywhere(Scope::kAdmin));
  EXPECT_TRUE(open.Identify("")->Sees("any"));
}

TEST(TokenOfTest, OneTokenHoweverTheSchemeIsSpelled) {
  for (const char* header : {"Bearer tok", "bearer tok", "BEARER tok"}) EXPECT_EQ(TokenOf(header), "tok") << header;
  EXPECT_EQ(TokenOf("Bearer  tok"), " tok");  // A token that begins with a space.
  for (const std::string& header : {std::string(), std::string("Bearer"), std::string("Bearer "), std::string("tok"),
                                    std::string("Basic tok"), "Bearer " + std::string(5000, 't')}) {
    EXPECT_EQ(TokenOf(header), "") << header;
  }
}

TEST_F(AccessControlTest, ScopesHoldOnTheRunsOfTheToken) {
  Start(Entry("tok", "[a-, b]", "[put, read]") + Entry("tok", "[c]", "[admin]") + Entry("root", "[\"\"]", "[admin]"));
  EXPECT_OK(Check("tok", Scope::kPut, "a-1"));
  EXPECT_OK(Check("tok", Scope::kAdmin | Scope::kRead, "b"));
  EXPECT_OK(Check("tok", Scope::kAdmin, "c/2"));
  EXPECT_THAT(Check("tok", Scope::kAdmin, "a-1"), Fails(kDenied, Reason::kUnspecified));
  EXPECT_THAT(Check("tok", Scope::kPut, "c"), Fails(kDenied, Reason::kUnspecified));
  EXPECT_OK(Check("root", Scope::kAdmin, ""));
  EXPECT_THAT(Check("tok", Scope::kAdmin, ""), Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  EXPECT_OK(control_->Identify("Bearer tok")->CheckAnywhere(Scope::kAdmin));
  EXPECT_THAT(control_->Identify("Bearer root")->CheckAnywhere(Scope::kPut), Fails(kDenied, Reason::kUnspecified));
  EXPECT_TRUE(control_->Identify("Bearer tok")->Sees("c"));
  EXPECT_FALSE(control_->Identify("Bearer tok")->Sees("d"));
}

TEST_F(AccessControlTest, RunsOfOthersAreRunsThatAreNotThere) {
  Start(Entry("tok", "[a-]", "[put, read, admin]"));
  for (const Scope scope : {Scope::kPut, Scope::kRead, Scope::kAdmin}) {
    EXPECT_EQ(Check("tok", scope, "b"), NoRunError("b"));
    EXPECT_EQ(Check("tok", scope, "a"), NoRunError("a"));
  }
}

TEST_F(AccessControlTest, WhatIsNoTokenIsRejected) {
  Start(Entry("tok", "[\"\"]", "[read]"));
  for (const std::string& header : std::vector<std::string>{
           "", "Bearer", "Bearer ", "tok", "Basic tok", "Bearer  tok", "Bearer tok ", "Bearer to",
           "Bearer " + Hash("tok"), "Bearer " + std::string(5000, 'x'), std::string("Bearer tok\0", 11)}) {
    EXPECT_THAT(control_->Check(header, Scope::kRead, "a"), Fails(kUnauthenticated, Reason::kUnspecified)) << header;
  }
  EXPECT_OK(control_->Check("bearer tok", Scope::kRead, "a"));
}

TEST_F(AccessControlTest, TokensExpire) {
  // The clock shows 01:00 on 1 January 1970.
  Start(Entry("day", "[\"\"]", "[read]", ", expires: 1970-01-02") +
        Entry("time", "[\"\"]", "[read]", ", expires: \"1970-01-01T02:00:00+01:00\""));
  EXPECT_OK(Check("day", Scope::kRead, "a"));
  EXPECT_THAT(Check("time", Scope::kRead, "a"), Fails(kUnauthenticated, Reason::kUnspecified));
  clock_.Advance(std::chrono::hours(23));
  EXPECT_THAT(Check("day", Scope::kRead, "a"), Fails(kUnauthenticated, Reason::kUnspecified));
}

TEST_F(AccessControlTest, AChangeHoldsForTheNextCheck) {
  Start(Entry("old", "[\"\"]", "[read]"));
  const auto before = control_->Identify("Bearer old");
  Write(Entry("new", "[\"\"]", "[read]"));
  EXPECT_THAT(Check("old", Scope::kRead, "a"), Fails(kUnauthenticated, Reason::kUnspecified));
  EXPECT_OK(Check("new", Scope::kRead, "a"));
  EXPECT_OK(before->Check(Scope::kRead, "a"));
  Write("[]");
  EXPECT_THAT(Check("new", Scope::kRead, "a"), Fails(kUnauthenticated, Reason::kUnspecified));
  EXPECT_THAT(warnings_, ::testing::IsEmpty());
}

TEST_F(AccessControlTest, ATokenHasTheNameOfItsEntry) {
  Start(Entry("tok", "[a-]", "[read]", ", expires: 1970-01-01") + "- {name: other, sha256: " + Hash("more") +
        ", runs: [b], scopes: [put]}\n");
  EXPECT_EQ(control_->NameOf("Bearer tok"), "n");  // The expired token still has its name.
  EXPECT_EQ(control_->NameOf("bearer more"), "other");
  for (const char* header : {"", "more", "Bearer ", "Bearer none"}) EXPECT_EQ(control_->NameOf(header), "") << header;
  EXPECT_EQ(AccessControl().NameOf("Bearer tok"), "");
}

// Each rejected change is reported, because it may have been meant to revoke a token.
TEST_F(AccessControlTest, EachChangeThatIsRejectedIsTold) {
  Start(Entry("tok", "[\"\"]", "[read]"));
  for (size_t told = 1; told < 4; ++told) {
    Write("- {name: n}\n");
    EXPECT_OK(Check("tok", Scope::kRead, "a"));
    EXPECT_OK(Check("tok", Scope::kRead, "a"));
    EXPECT_EQ(warnings_.size(), told);
    EXPECT_EQ(reloads_, told);
  }
  Write(Entry("tok", "[\"\"]", "[read]"));
  EXPECT_OK(Check("tok", Scope::kRead, "a"));
  EXPECT_EQ(warnings_.size(), 3u);
  EXPECT_EQ(reloads_, 4u);
}

TEST_F(AccessControlTest, ABrokenFileLeavesTheTokensAndIsToldOnce) {
  Start(Entry("tok", "[\"\"]", "[read]"));
  size_t told = 0;
  for (const std::string text : {"- {name: n}\n", "", "{\n", "- 3\n", "- 4"}) {
    Write(text);
    for (int i = 0; i < 3; ++i) EXPECT_OK(Check("tok", Scope::kRead, "a"));
    EXPECT_EQ(warnings_.size(), ++told) << text;
  }
  std::remove(path_.c_str());
  EXPECT_OK(Check("tok", Scope::kRead, "a"));
  EXPECT_EQ(warnings_.size(), told + 1);
  EXPECT_THAT(warnings_.back(), ::testing::HasSubstr(path_));
}

TEST_F(AccessControlTest, ABrokenFileIsNoBeginning) {
  Write("nonsense: {");
  EXPECT_FALSE(AccessControl::Create(path_, clock_, [](const absl::Status&) {}).ok());
  EXPECT_FALSE(AccessControl::Create("/does/not/exist", clock_, [](const absl::Status&) {}).ok());
}

std::string RowOf(const CallRule& rule) {
  std::vector<std::string> names;
  for (const ScopeName& scope : kScopeNames) {
    if (rule.any_of.overlaps(scope.scope)) names.push_back(absl::StrCat("`", scope.name, "`"));
  }
  return absl::StrCat("| ", rule.call, " | ", rule.any_of == kAnyScope ? "any" : absl::StrJoin(names, " or "), " |");
}

TEST(CallRulesTest, SecurityMdShowsThem) {
  std::ifstream file("SECURITY.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const CallRule& rule : CallRules()) {
    EXPECT_TRUE(absl::StrContains(text.str(), RowOf(rule))) << "SECURITY.md lacks: " << RowOf(rule);
  }
}

}  // namespace
}  // namespace routing_replay::testing
