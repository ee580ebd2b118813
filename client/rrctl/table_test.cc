#include "client/rrctl/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace routing_replay {
namespace {

TEST(TableTest, ColumnsLineUp) {
  std::ostringstream out;
  PrintTable({{{"sample", "a"}, {"rows", 12}}, {{"sample", "longer"}, {"rows", nullptr}}}, out);
  EXPECT_EQ(out.str(), "sample  rows\na       12\nlonger  -\n");
}

TEST(TableTest, NothingPrintsNothing) {
  std::ostringstream out;
  PrintTable({}, out);
  EXPECT_EQ(out.str(), "");
}

TEST(TableTest, HumanBytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(int64_t{5} << 40), "5.0 TiB");
}

}  // namespace
}  // namespace routing_replay
