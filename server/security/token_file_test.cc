#include "server/security/token_file.h"

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

const std::string kHash(64, 'a');

TEST(TokenFileTest, YamlAndJsonAreTheSame) {
  const std::string yaml =
      absl::StrCat("- name: rollout\n  sha256: ", kHash,
                   "\n  runs: [grpo-, x]\n  scopes: [put, read]\n  max_runs: 20\n", "  expires: 2027-01-31\n");
  const std::string json =
      absl::StrCat(R"([{"name": "rollout", "sha256": ")", kHash, R"(", "runs": ["grpo-", "x"],)",
                   R"( "scopes": ["put", "read"], "max_runs": 20, "expires": "2027-01-31T01:00:00+01:00"}])");
  for (const std::string& text : {yaml, json}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<TokenGrant> grants, ParseTokenFile(text));
    ASSERT_EQ(grants.size(), 1u);
    EXPECT_EQ(grants[0].name, "rollout");
    EXPECT_THAT(grants[0].sha256, ::testing::Each(0xaa));
    EXPECT_THAT(grants[0].run_prefixes, ::testing::ElementsAre("grpo-", "x"));
    EXPECT_EQ(grants[0].scopes, Scope::kPut | Scope::kRead);
    EXPECT_EQ(grants[0].max_runs, 20);
    EXPECT_EQ(std::chrono::system_clock::to_time_t(*grants[0].expires), 1801353600);
  }
}

TEST(TokenFileTest, PrefixesCover) {
  TokenGrant grant{.run_prefixes = {"a/", "b"}};
  EXPECT_TRUE(grant.covers("a/1"));
  EXPECT_TRUE(grant.covers("bc"));
  EXPECT_FALSE(grant.covers("a"));
  EXPECT_FALSE(grant.covers(""));
  grant.run_prefixes = {""};
  EXPECT_TRUE(grant.covers(""));
}

// Every cut ends inside the last value, so the rest is valid YAML, too. But its prefix is shorter ("team-" instead of
// "team-a/") and covers more runs. It is rejected because it does not end with a newline.
TEST(TokenFileTest, HalfAFileIsNoFile) {
  const std::string whole =
      absl::StrCat("- name: n\n  sha256: ", kHash, "\n  scopes: [read]\n  runs:\n    - team-a/\n");
  ASSERT_OK(ParseTokenFile(whole));
  for (size_t cut = 1; cut < 8; ++cut) {
    const auto half = ParseTokenFile(whole.substr(0, whole.size() - cut));
    EXPECT_EQ(half.status().code(), absl::StatusCode::kInvalidArgument) << cut;
  }
}

// yaml-cpp's LoadAll allocates memory without end for this text.
TEST(TokenFileTest, TextThatIsNoYamlEnds) {
  const std::string text = absl::StrCat(", name: r\n  sha256: ", kHash, "\n\x97  runs: [grpo-]\n  scopes: [put]\n");
  EXPECT_EQ(ParseTokenFile(text).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TokenFileTest, ADocumentMayBeginWithItsMarkAndHasNoSecondOne) {
  const std::string one =
      absl::StrCat("# Tokens.\n---\n- {name: n, sha256: ", kHash, ", runs: [\"\"], scopes: [read]}\n");
  ASSERT_OK(ParseTokenFile(one));
  EXPECT_THAT(ParseTokenFile(one + "---\n[]\n").status().message(), ::testing::HasSubstr("must be one YAML document"));
}

TEST(TokenFileTest, FaultsNameEntryAndKey) {
  const std::string good = absl::StrCat("- {name: n, sha256: ", kHash, ", runs: [\"\"], scopes: [read]}\n");
  ASSERT_OK(ParseTokenFile(good));
  ASSERT_OK(ParseTokenFile("[]"));
  const auto with = [&](absl::string_view rest) { return absl::StrCat(good, "- {", rest, "}\n"); };
  for (const auto& [text, word] : std::vector<std::pair<std::string, std::string>>{
           {"", "must be a list of tokens"},
           {"tokens: []\n", "must be a list of tokens"},
           {good + "- 7\n", "entry 2: must be a mapping"},
           {with("name: n, token: secret"), "entry 2: unknown key 'token'"},
           {with("name: n, sha256: secret"), "entry 2: sha256"},
           {with("name: n, sha256: " + std::string(64, 'g')), "sha256"},
           {with("sha256: " + kHash), "name"},
           {with("name: n, sha256: " + kHash + ", runs: [a], scopes: [put], max_runs: 0"), "max_runs"},
           {with("name: n, sha256: " + kHash + ", runs: [a], scopes: [put], max_runs: many"), "max_runs"},
           {with("name: n, sha256: " + kHash), "runs"},
           {with("name: n, runs: [], sha256: " + kHash), "runs"},
           {with("name: n, runs: all, sha256: " + kHash), "runs"},
           {with("name: n, runs: [a], sha256: " + kHash), "scopes"},
           {with("name: n, runs: [a], scopes: [write], sha256: " + kHash), "write"},
           {with("name: n, runs: [a], scopes: [put], expires: soon, sha256: " + kHash), "expires"},
           {good + "---\n" + good, "must be one YAML document"},
           {good + "- name: n\n  sha256: " + kHash + "\n  runs: [a]\n  scopes: [put]\n  scopes: [admin]\n",
            "entry 2: key 'scopes' is given twice"},
           {R"([{"name": "n", "name": "m"}])", "entry 1: key 'name' is given twice"},
           {good + "- {\n", ""}}) {
    const auto grants = ParseTokenFile(text);
    EXPECT_EQ(grants.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(grants.status().message()), ::testing::HasSubstr(word)) << text;
    EXPECT_THAT(std::string(grants.status().message()), ::testing::Not(::testing::HasSubstr("secret")));
  }
}

}  // namespace
}  // namespace routing_replay::server
