#include "server/security/call_rules.h"

#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace routing_replay::server {
namespace {

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
}  // namespace routing_replay::server
