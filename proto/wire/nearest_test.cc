#include "proto/wire/nearest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace routing_replay {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(NearestTest, SomeLettersMayDiffer) {
  const std::vector<std::string> words = {"export", "import", "report", "rm", "ls"};
  EXPECT_THAT(Nearest("exprot", words), ElementsAre("export"));
  EXPECT_THAT(Nearest("xport", words), ElementsAre("export"));
  EXPECT_THAT(Nearest("eport", words), ElementsAre("export", "report"));
  EXPECT_THAT(Nearest("r", words), ElementsAre("rm"));
  EXPECT_THAT(Nearest("verify", words), IsEmpty());
  EXPECT_THAT(Nearest("", words), IsEmpty());
  EXPECT_THAT(Nearest("ls", {}), IsEmpty());
}

TEST(NearestTest, IsSaidInOneSentence) {
  EXPECT_EQ(ThereIsNo("command", "eport", {"export", "report"}),
            "there is no command 'eport'; did you mean export or report?");
  EXPECT_EQ(ThereIsNo("command", "x", {"export"}), "there is no command 'x'");
}

}  // namespace
}  // namespace routing_replay
