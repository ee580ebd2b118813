#include "client/rrctl/report/page.h"

#include <gtest/gtest.h>

#include "client/rrctl/report/chart.h"

namespace routing_replay::client {
namespace {

constexpr char kHostile[] = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{data}}\"'&";

// A run of two layers, two groups and one weight version, with names that try to be markup.
Document HostileReport() {
  const Document balance =
      Document::parse(R"([{"max_to_mean": 1.5, "entropy": 0.9}, {"max_to_mean": null, "entropy": null}])");
  Document report = Document::parse(R"({
    "run": {"run": "", "geometry": {"num_layers": 2}, "samples": 3, "sealed_samples": 2, "rows": 1234567, "stored_bytes": 2048,
            "ttl_ms": 60000},
    "load": [{"layer": 0, "rows": 10, "experts": 4, "unused": 1, "busiest": 2, "busiest_count": 12, "max_to_mean": 2.4,
              "entropy": 0.75, "counts": [4, 4, 12, 0]},
             {"layer": 7, "rows": 10, "experts": 4, "unused": 0, "busiest": 0, "busiest_count": 5, "max_to_mean": 1.0,
              "entropy": 1.0, "counts": [5, 5, 5, 5]}],
    "samples": {"all": 3, "read": 2, "seed": 9, "damaged": []},
    "groups": [{"begin": 0, "end": 1, "samples": 2, "rows": 90, "unrecorded_rows": 9, "lost_rows": 0},
               {"begin": 1, "end": 5, "samples": 1, "rows": 10, "unrecorded_rows": 0, "lost_rows": 1}],
    "weight_versions": [{"rows": 10}],
    "neighbours": [{"layer": 0, "pairs": 8, "shared": 0.5, "expected": 0.25}, {"layer": 7, "pairs": 8, "shared": 0.4, "expected": 0.3}],
    "lengths": {"samples": 3, "median": 30, "p99": 60, "longest": 60, "begin": 20, "width": 20, "counts": [2, 0, 1]},
    "missing_samples": 1,
    "missing": [{"group": 0, "rows": 90, "unrecorded_rows": 9, "lost_rows": 0}],
    "mismatch": {"samples": 1, "rows": 10, "layers": [
      {"layer": 0, "choices": 10, "order_only": 1, "other_experts": 2, "no_common_expert": 0, "replaced_ids": 3},
      {"layer": 7, "choices": 10, "order_only": 0, "other_experts": 0, "no_common_expert": 0, "replaced_ids": 0}]}})");
  report["run"]["run"] = kHostile;
  report["missing"][0]["sample"] = kHostile;
  report["weight_versions"][0]["label"] = kHostile;
  report["weight_versions"][0]["layers"] = balance;
  for (Document& group : report["groups"]) group["layers"] = balance;
  report["samples"]["damaged"].push_back({{"sample", kHostile}, {"error", kHostile}});
  return report;
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(PageTest, HostileNamesStayText) {
  const std::string page = RenderReport(HostileReport(), "today");
  EXPECT_EQ(Count(page, "<script"), 2u);
  EXPECT_EQ(Count(page, "</script>"), 2u);
  EXPECT_EQ(Count(page, "<img"), 0u);
  EXPECT_GE(Count(page, "&lt;/script&gt;&lt;script&gt;alert(1)"), 3u);
  EXPECT_GE(Count(page, "{{data}}&quot;&#39;&amp;"), 3u);
}

TEST(PageTest, TheDataIsTheReport) {
  const Document report = HostileReport();
  const std::string page = RenderReport(report, "today");
  const std::string open = R"(<script type="application/json" id="data">)";
  const size_t begin = page.find(open) + open.size();
  EXPECT_EQ(Document::parse(page.substr(begin, page.find("</script>", begin) - begin)), report);
}

TEST(PageTest, EveryPlaceIsFilledAndNothingComesFromElsewhere) {
  Document report = HostileReport();
  report["run"]["run"] = "plain";
  report["missing"][0]["sample"] = report["weight_versions"][0]["label"] = "plain";
  report["samples"]["damaged"] = Document::array();
  const std::string page = RenderReport(report, "today");
  EXPECT_EQ(page.find("{{"), page.npos);
  for (const char* outside : {"http:", "https:", "//cdn", "@import", "url("})
    EXPECT_EQ(page.find(outside), page.npos) << outside;
  for (const char* figure : {"1,234,567", "2.0 KiB", "10.00 %", "Median 30, 99th percentile 60, longest 60 tokens"}) {
    EXPECT_NE(page.find(figure), page.npos) << figure;
  }
  EXPECT_NE(page.find("mixed with the seed 9"), page.npos);
}

TEST(PageTest, AnEmptyRunHasAPageToo) {
  Document report = HostileReport();
  for (const char* key : {"groups", "weight_versions", "missing"}) report[key] = Document::array();
  for (Document& layer : report["load"]) {
    layer["counts"] = {0, 0, 0, 0};
    layer["max_to_mean"] = layer["entropy"] = nullptr;
    layer["rows"] = 0;
  }
  for (Document& layer : report["neighbours"]) layer["shared"] = layer["expected"] = nullptr;
  report["lengths"] = Document::parse(
      R"({"samples": 0, "median": null, "p99": null, "longest": null, "begin": 0, "width": 1, "counts": []})");
  report["mismatch"] = nullptr;
  report["missing_samples"] = 0;
  const std::string page = RenderReport(report, "today");
  EXPECT_NE(page.find("There are no samples."), page.npos);
  EXPECT_NE(page.find("There are no recorded rows."), page.npos);
  EXPECT_NE(page.find("No row is missing."), page.npos);
  EXPECT_NE(page.find("Nothing to compare."), page.npos);
}

TEST(ChartTest, TicksAreInTheMiddleOfCells) {
  const auto ticks = CellTicks(128, 5, [](size_t cell) { return std::to_string(cell); });
  ASSERT_EQ(ticks.size(), 5u);
  EXPECT_EQ(ticks[0].label, "0");
  EXPECT_EQ(ticks[4].label, "127");
  EXPECT_DOUBLE_EQ(ticks[4].at, 127.5 / 128);
  EXPECT_EQ(CellTicks(1, 5, [](size_t) { return "x"; }).size(), 1u);
  EXPECT_TRUE(CellTicks(0, 5, [](size_t) { return "x"; }).empty());
  const auto scale = ScaleTicks(1, 2.5);
  EXPECT_EQ(scale[1].label, "1.75");
  EXPECT_EQ(scale[2].at, 0);
}

}  // namespace
}  // namespace routing_replay::client
