#include "client/rrctl/table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace routing_replay::client {
namespace {

const Style kPlain(false);

TEST(TableTest, ColumnsLineUp) {
  std::ostringstream out;
  TableWriter(out, kPlain).Add({{{"sample", "a"}, {"rows", 12}}, {{"sample", "größer"}, {"rows", nullptr}}});
  EXPECT_EQ(out.str(), "sample  rows\na       12\ngrößer  -\n");
}

TEST(TableTest, HeadingIsBoldWithColour) {
  std::ostringstream out;
  TableWriter(out, Style(true)).Add({{{"sample", "a"}}});
  EXPECT_EQ(out.str(), "\033[1msample\033[0m\na\n");
}

TEST(TableTest, PortionsShareTheColumns) {
  std::ostringstream out;
  TableWriter table(out, kPlain);
  table.Add({{{"row", 1}, {"layer", 0}}});
  table.Add(Document::array());
  table.Add({{{"row", 10000}, {"layer", 1}}, {{"layer", 2}, {"extra", 1}}});
  table.Add({{{"row", 2}, {"layer", 3}}});
  EXPECT_EQ(out.str(), "row  layer\n1    0\n10000  1\n       2\n2      3\n");
}

TEST(TableTest, NothingPrintsNothing) {
  std::ostringstream out;
  TableWriter(out, kPlain).Add(Document::array());
  EXPECT_EQ(out.str(), "");
}

TEST(TableTest, CellsShowUnitsAndNestedValues) {
  EXPECT_EQ(Cell("stored_bytes", 1536), "1.5 KiB");
  EXPECT_EQ(Cell("routing_replay_ingest_bytes_total", 1536), "1.5 KiB");
  EXPECT_EQ(Cell("idle_ms", 3250), "3.2 s");
  EXPECT_EQ(Cell("rows", 1536), "1536");
  EXPECT_EQ(Cell("max_to_mean", 3.6656472986748216), "3.67");
  EXPECT_EQ(Cell("sealed", true), "yes");
  EXPECT_EQ(Cell("tokens", nullptr), "-");
  EXPECT_EQ(Cell("name", "a\033[2J"), "a\\x1B[2J");
  EXPECT_EQ(Cell("experts", {3, 1, 2}), "3, 1, 2");
  EXPECT_EQ(Cell("unrecorded", Document::array()), "-");
  EXPECT_EQ(Cell("unrecorded", {{3, 17}, {20, 21}}), "3:17, 20:21");
  EXPECT_EQ(Cell("weights", Document::array({{{"rows", {0, 3}}, {"version", nullptr}, {"label", ""}}})),
            "rows 0:3 version -");
}

TEST(TableTest, RecordIsALinePerKey) {
  std::ostringstream out;
  PrintRecord({{"version", "0.1.0"}, {"stored_bytes", 2048}, {"counters", {{"appends_total", 12}, {"x", 3}}}}, out,
              kPlain, {{"appends_total", "5/s"}, {"x", "1/s"}});
  EXPECT_EQ(out.str(),
            "version  0.1.0\n"
            "stored   2.0 KiB\n"
            "counters\n"
            "  appends_total  12  5/s\n"
            "  x              3   1/s\n");
}

}  // namespace
}  // namespace routing_replay::client
