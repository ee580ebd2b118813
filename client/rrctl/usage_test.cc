#include "client/rrctl/usage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace routing_replay::client {
namespace {

class UsageTest : public ::testing::Test {
 protected:
  UsageTest() {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.add_option("--endpoint", text_);
    app_.add_option("--timeout", number_)->check(CLI::Range(1, 3600));
    CLI::App* stat = app_.add_subcommand("stat");
    stat->add_option("RUN", text_)->required();
    stat->add_flag("--watch", flag_);
    app_.add_subcommand("status");
    app_.add_subcommand("rm")->callback([] { throw CLI::ValidationError("rm", "name samples,\nor give --all"); });
  }

  std::string Said(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    try {
      app_.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
      const absl::Status status = UsageError(app_, error);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      return std::string(status.message());
    }
    return "nothing";
  }

  CLI::App app_{"test", "test"};
  std::string text_;
  bool flag_ = false;
  int number_ = 0;
};

TEST_F(UsageTest, TheWrongWordIsNamedWithTheNearestRightOnes) {
  EXPECT_EQ(Said({"stats", "r"}), "there is no command 'stats'; did you mean stat or status? (see test --help)");
  EXPECT_EQ(Said({"--endpoint", "a:1", "nosuch"}), "there is no command 'nosuch' (see test --help)");
  EXPECT_EQ(Said({"stat", "r", "--wach"}), "there is no flag '--wach'; did you mean --watch? (see test stat --help)");
  EXPECT_EQ(Said({"stat", "--endpoit=a:1"}),
            "there is no flag '--endpoit'; did you mean --endpoint? (see test stat --help)");
  EXPECT_EQ(Said({"--nothing", "stat", "r"}), "there is no flag '--nothing' (see test stat --help)");
}

TEST_F(UsageTest, TheHelpThatIsNamedHasTheFlag) {
  const std::string range = Said({"status", "--timeout", "0"});
  EXPECT_EQ(range.substr(range.find(" (")), " (see test --help)") << range;
  EXPECT_EQ(Said({"stat", "r", "--json"}),
            "there is no flag '--json'; -w json is for every command (see test stat --help)");
}

TEST_F(UsageTest, WhatIsMissingOrTooMuchIsNamed) {
  EXPECT_EQ(Said({}), "no command is given (see test --help)");
  EXPECT_EQ(Said({"stat"}), "RUN is required (see test stat --help)");
  EXPECT_EQ(Said({"stat", "r", "s"}), "'s' is one argument too many (see test stat --help)");
  EXPECT_EQ(Said({"rm"}), "rm: name samples, or give --all (see test rm --help)");
}

}  // namespace
}  // namespace routing_replay::client
