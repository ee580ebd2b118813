#include "client/rrctl/output.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

const Document kRows = {{{"row", 0}, {"experts", {1, 2}}}, {{"row", 1}, {"experts", nullptr}}};

std::string Printed(Format format, const Document& document, Layout layout) {
  std::ostringstream out;
  Output output(out, format, Style(false));
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
    Output output(out, Format::kJson, Style(false));
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
  Output output(out, Format::kJson, Style(false));
  ASSERT_OK(Output::Stream(output).End());
  EXPECT_EQ(out.str(), "[]\n");
}

TEST(OutputTest, AReaderThatIsGoneIsAnError) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  Output output(out, Format::kJson, Style(false));
  EXPECT_EQ(output.Flush().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Output::Stream(output).Add(kRows).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace routing_replay::client
