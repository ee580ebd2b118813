#include "client/rrctl/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest() {
    app_.fallthrough();
    app_.add_option("--endpoint", text_, "server");
    app_.add_option("-w,--write-out", text_, "format")->check(CLI::IsMember(std::vector<std::string>{"table", "json"}));
    CLI::App* ls = app_.add_subcommand("ls", "the samples");
    ls->add_option("RUN", text_)->required();
    CLI::App* stat = app_.add_subcommand("stat", "a sample");
    stat->add_option("RUN", text_)->required();
    stat->add_option("SAMPLE", texts_);
    stat->add_flag("--watch{2}", text_, "again and again");
    CLI::App* put = app_.add_subcommand("put", "rows of a file\nwith a second line");
    put->add_option("RUN", text_);
    put->add_option("FILE", text_);
    put->add_option("--trace", text_, "a file too")->type_name("FILE");
    app_.add_subcommand("plan", "a plan");
  }

  std::vector<std::string> Values(const std::vector<std::string>& words) {
    std::vector<std::string> values;
    const Completions completions = Find(words);
    EXPECT_FALSE(completions.files);
    for (const Candidate& candidate : completions.candidates) values.push_back(candidate.value);
    return values;
  }

  Completions Find(const std::vector<std::string>& words) {
    return Complete(app_, words, [this](absl::string_view argument, const WordsByName& seen) {
      seen_ = seen;
      return std::vector<std::string>{std::string(argument) + "-1", std::string(argument) + "-2"};
    });
  }

  CLI::App app_{"test", "test"};
  std::string text_;
  std::vector<std::string> texts_;
  WordsByName seen_;
};

TEST_F(CompletionTest, CommandsAtTheirPlace) {
  EXPECT_THAT(Values({""}), ElementsAre("ls", "stat", "put", "plan"));
  EXPECT_THAT(Values({"p"}), ElementsAre("put", "plan"));
  EXPECT_THAT(Values({"--endpoint", "a:1", "-w", "json", "l"}), ElementsAre("ls"));
  EXPECT_THAT(Values({"x"}), IsEmpty());
  EXPECT_THAT(Values({}), IsEmpty());
}

TEST_F(CompletionTest, FlagsOfTheCommandAndOfTheProgram) {
  EXPECT_THAT(Values({"-"}), ElementsAre("--help", "-h", "--endpoint", "--write-out", "-w"));
  EXPECT_THAT(Values({"stat", "--"}), ElementsAre("--help", "--watch", "--endpoint", "--write-out"));
  EXPECT_THAT(Values({"stat", "run", "--w"}), ElementsAre("--watch", "--write-out"));
  EXPECT_THAT(Values({"stat", "--watch=5", "-w", "json", "--w"}), IsEmpty());
  EXPECT_THAT(Values({"stat", "--", "--w"}), IsEmpty());
}

TEST_F(CompletionTest, ValuesOfASet) {
  EXPECT_THAT(Values({"ls", "-w", ""}), ElementsAre("table", "json"));
  EXPECT_THAT(Values({"--write-out", "j"}), ElementsAre("json"));
  EXPECT_THAT(Values({"ls", "--write-out=j"}), ElementsAre("--write-out=json"));
  EXPECT_THAT(Values({"--endpoint", ""}), IsEmpty());
}

TEST_F(CompletionTest, NamesForArguments) {
  EXPECT_THAT(Values({"ls", ""}), ElementsAre("RUN-1", "RUN-2"));
  EXPECT_THAT(Values({"ls", "run", ""}), IsEmpty());
  EXPECT_THAT(Values({"stat", "--watch", "run", "a", "SAMPLE-2"}), ElementsAre("SAMPLE-2"));
  EXPECT_THAT(Values({"--endpoint=a:1", "stat", "run", "a", ""}), ElementsAre("SAMPLE-1", "SAMPLE-2"));
  EXPECT_THAT(seen_, ElementsAre(std::pair<const std::string, std::vector<std::string>>("--endpoint", {"a:1"}),
                                 std::pair<const std::string, std::vector<std::string>>("RUN", {"run"}),
                                 std::pair<const std::string, std::vector<std::string>>("SAMPLE", {"a"})));
}

TEST_F(CompletionTest, Files) {
  EXPECT_TRUE(Find({"put", "run", ""}).files);
  EXPECT_TRUE(Find({"put", "--trace", "x"}).files);
  EXPECT_THAT(Find({"put", "run", ""}).candidates, IsEmpty());
}

TEST_F(CompletionTest, LinesHaveDescriptions) {
  EXPECT_EQ(CompletionLines(Find({"pu"})), "put\trows of a file\n");
  EXPECT_EQ(CompletionLines(Find({"put", "run", ""})), ":files\n");
}

TEST(CompletionScriptTest, OneForEachShell) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    EXPECT_THAT(*CompletionScript(shell), ::testing::HasSubstr(kCompleteCommand)) << shell;
  }
  EXPECT_EQ(CompletionScript("tcsh").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace routing_replay::client
