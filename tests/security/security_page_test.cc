// Checks that SECURITY.md states for each threat how it is answered, and which test shows this.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace routing_replay::testing {
namespace {

using ::testing::Contains;

// The threats that SECURITY.md must answer, in the words of its rows.
constexpr const char* kThreats[] = {"zstd bomb",
                                    "zstd frames",
                                    "base64",
                                    "pickles",
                                    "shapes that lie",
                                    "wrap in a narrow type",
                                    "are not experts",
                                    "stale weights",
                                    "other users' runs",
                                    "callers without a token",
                                    "listeners that anybody can reach",
                                    "fill the memory",
                                    "slow loris",
                                    "one run that takes everything",
                                    "log and metric injection",
                                    "damaged bytes"};

struct Row {
  std::string threat;
  std::string answer;
  std::string tests;
};

std::string TextOf(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Row> Rows(const std::string& page) {
  std::vector<Row> rows;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() != 3 || absl::StartsWith(line, "| threat ")) continue;
    rows.push_back(
        {std::string(absl::StripPrefix(cells[0], "| ")), cells[1], std::string(absl::StripSuffix(cells[2], " |"))});
  }
  return rows;
}

// "Suite.Name" of every test in the sources.
std::set<std::string> TestsThatAreThere() {
  std::set<std::string> tests;
  const std::regex declared("TEST(?:_F|_P)?[(]([A-Za-z0-9]+),\\s*([A-Za-z0-9]+)[)]");
  for (const char* folder : {"proto", "tests/security", "tests/integration", "server", "trainer_plugin"}) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
      if (!absl::EndsWith(file.path().string(), "_test.cc")) continue;
      const std::string source = TextOf(file.path());
      for (std::sregex_iterator found(source.begin(), source.end(), declared), end; found != end; ++found) {
        tests.insert((*found)[1].str() + "." + (*found)[2].str());
      }
    }
  }
  return tests;
}

std::set<std::string> TestsNamedIn(const std::string& text) {
  std::set<std::string> tests;
  const std::regex name("`([A-Z][A-Za-z0-9]+[.][A-Z][A-Za-z0-9]+)`");
  for (std::sregex_iterator found(text.begin(), text.end(), name), end; found != end; ++found) {
    tests.insert((*found)[1].str());
  }
  return tests;
}

class SecurityPageTest : public ::testing::Test {
 protected:
  const std::string page_ = TextOf("SECURITY.md");
  const std::vector<Row> rows_ = Rows(page_);
};

TEST_F(SecurityPageTest, EveryThreatHasARow) {
  for (const char* threat : kThreats) {
    const auto names_it = [&](const Row& row) { return absl::StrContains(row.threat, threat); };
    EXPECT_TRUE(std::any_of(rows_.begin(), rows_.end(), names_it)) << threat;
  }
}

TEST_F(SecurityPageTest, EveryRowNamesTestsThatAreThereOrIsOpen) {
  const std::set<std::string> there = TestsThatAreThere();
  const size_t not_covered = page_.find("\nWhat is not covered:\n");
  ASSERT_NE(not_covered, std::string::npos);
  const std::string open = page_.substr(not_covered, page_.find("\n## ", not_covered) - not_covered);
  for (const Row& row : rows_) {
    EXPECT_FALSE(row.answer.empty()) << row.threat;
    const std::set<std::string> named = TestsNamedIn(row.tests);
    for (const std::string& test : named) EXPECT_THAT(there, Contains(test)) << row.threat;
    if (named.empty()) {
      EXPECT_EQ(row.tests, "open") << row.threat;
      EXPECT_THAT(open, ::testing::HasSubstr("- " + row.threat + ": "));
    }
  }
}

TEST_F(SecurityPageTest, EveryAttackIsInIt) {
  const std::set<std::string> named = TestsNamedIn(page_);
  for (const std::string& test : TestsThatAreThere()) {
    if (absl::StartsWith(test, "AttackTest.")) {
      EXPECT_THAT(named, Contains(test));
    }
  }
}

}  // namespace
}  // namespace routing_replay::testing
