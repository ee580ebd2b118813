#include "client/rrctl/output.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

const Document kRows = {{{"row", 0}, {"experts", {1, 2}}}, {{"row", 1}, {"experts", nullptr}}};

std::string Printed(Format format, const Document& document, Layout layout) {
  std::ostringstream out;
  Output output(out, format);
  output.Print(document, layout);
  return out.str();
}

TEST(OutputTest, JsonIsOneLineWithExactValues) {
  EXPECT_EQ(Printed(Format::kJson, {{"stored_bytes", 1536}, {"idle_ms", 3250}}, Layout::kRecords),
            "{\"stored_bytes\":1536,\"idle_ms\":3250}\n");
  EXPECT_EQ(Printed(Format::kJson, Document::array(), Layout::kColumns), "[]\n");
  EXPECT_EQ(Printed(Format::kJson, {{"label", "\xff"}}, Layout::kRecords), "{\"label\":\"\xEF\xBF\xBD\"}\n");
}

TEST(OutputTest, RecordsOfAnArrayStandApart) {
  EXPECT_EQ(Printed(Format::kTable, {{{"sample", "a"}}, {{"sample", "b"}}}, Layout::kRecords),
            "sample  a\n\nsample  b\n");
}

TEST(OutputTest, StreamInPortionsIsOneArray) {
  for (const size_t portion : {1, 2}) {
    std::ostringstream out;
    Output output(out, Format::kJson);
    Output::Stream stream(output);
    for (size_t i = 0; i < kRows.size(); i += portion) {
      ASSERT_OK(stream.Add(Document(kRows.begin() + i, kRows.begin() + i + portion)));
    }
    ASSERT_OK(stream.End());
    EXPECT_EQ(Document::parse(out.str()), kRows);
  }
}

TEST(OutputTest, StreamOfNothingIsAnEmptyArray) {
  std::ostringstream out;
  Output output(out, Format::kJson);
  ASSERT_OK(Output::Stream(output).End());
  EXPECT_EQ(out.str(), "[]\n");
}

TEST(OutputTest, AReaderThatIsGoneIsAnError) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  Output output(out, Format::kJson);
  EXPECT_EQ(output.Flush().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Output::Stream(output).Add(kRows).code(), absl::StatusCode::kDataLoss);
}

TEST(TableTest, ColumnsLineUp) {
  std::ostringstream out;
  TableWriter(out).Add({{{"sample", "a"}, {"rows", 12}}, {{"sample", "größer"}, {"rows", nullptr}}});
  EXPECT_EQ(out.str(), "sample  rows\na       12\ngrößer  -\n");
}

TEST(TableTest, PortionsShareTheColumns) {
  std::ostringstream out;
  TableWriter table(out);
  table.Add({{{"row", 1}, {"layer", 0}}});
  table.Add(Document::array());
  table.Add({{{"row", 10000}, {"layer", 1}}, {{"layer", 2}, {"extra", 1}}});
  table.Add({{{"row", 2}, {"layer", 3}}});
  EXPECT_EQ(out.str(), "row  layer\n1    0\n10000  1\n       2\n2      3\n");
}

TEST(TableTest, NothingPrintsNothing) {
  std::ostringstream out;
  TableWriter(out).Add(Document::array());
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

TEST(OutputTest, RecordIsALinePerKey) {
  EXPECT_EQ(Printed(Format::kTable,
                    {{"version", "0.1.0"}, {"stored_bytes", 2048}, {"counters", {{"appends_total", 12}, {"x", 3}}}},
                    Layout::kRecords),
            "version  0.1.0\n"
            "stored   2.0 KiB\n"
            "counters\n"
            "  appends_total  12\n"
            "  x              3\n");
}

TEST(OutputTest, ARecordAndItsTable) {
  const Document document = {{"rows", 3}, {"damaged", {{{"sample", "a"}, {"row", 1}}}}};
  std::ostringstream out;
  Output(out, Format::kTable).PrintWithTable(document, "damaged");
  EXPECT_EQ(out.str(), "rows     3\ndamaged  1\n\nsample  row\na       1\n");
}

TEST(TerminalTest, ControlCharactersAreShown) {
  EXPECT_EQ(Printable("a\033[2Jb\n"), "a\\x1B[2Jb\\x0A");
  EXPECT_EQ(Printable("größe"), "größe");
  EXPECT_EQ(Printable("\xC2\x9B"
                      "31m"),
            "\\xC2\\x9B31m");  // A control sequence of eight bits.
  EXPECT_EQ(Printable("\x9B"
                      "31m\xC2"),
            "\\x9B31m\\xC2");
  EXPECT_EQ(Printable("\xE0\x80\x9B€𝄞"), "\\xE0\\x80\\x9B€𝄞");
  EXPECT_EQ(Printable("\xED\xA0\x80"), "\\xED\\xA0\\x80");           // A surrogate is no character of UTF-8.
  EXPECT_EQ(Printable("\xF4\x90\x80\x80"), "\\xF4\\x90\\x80\\x80");  // Nor is a number above U+10FFFF.
}

}  // namespace
}  // namespace routing_replay::client
