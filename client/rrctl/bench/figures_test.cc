#include "client/rrctl/bench/figures.h"

#include <gtest/gtest.h>

namespace routing_replay::client {
namespace {

TEST(FiguresTest, MedianAndSpread) {
  EXPECT_EQ(Figure("x", {3, 1, 2}, "s"), Document({{"name", "x"},
                                                   {"median", 2.0},
                                                   {"min", 1.0},
                                                   {"max", 3.0},
                                                   {"unit", "s"},
                                                   {"floor", nullptr},
                                                   {"ratio", nullptr}}));
  EXPECT_EQ(Figure("x", {4, 1}, "s")["median"], 2.5);
}

TEST(FiguresTest, QuantileIsTheNearestRank) {
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(Quantile(hundred, 0.99), 99);
  EXPECT_EQ(Quantile(hundred, 1), 100);
  EXPECT_EQ(Quantile(hundred, 0), 1);
  EXPECT_EQ(Quantile({7}, 0.99), 7);
  EXPECT_EQ(Quantile({7, 8}, 0.99), 8);
}

TEST(FiguresTest, TableHasUnits) {
  const Document table = FigureTable(
      Document::array({Figure("append_throughput", {1 << 20}, "bytes/s"), Figure("append_latency", {0.0015}, "s"),
                       Figure("read_latency", {1.5}, "s"), Figure("append_rows", {1234.4}, "rows/s")}));
  EXPECT_EQ(table[0]["median"], "1.0 MiB/s");
  EXPECT_EQ(table[1]["max"], "1.50 ms");
  EXPECT_EQ(table[2]["min"], "1.50 s");
  EXPECT_EQ(table[3]["median"], "1234 rows/s");
}

TEST(FiguresTest, CsvHasExactNumbers) {
  EXPECT_EQ(FigureCsv(Document::array({Figure("append_latency", {0.0015, 0.5}, "s"), Figure("rows", {3}, "rows/s")})),
            "figure,median,min,max,unit\nappend_latency,0.25075,0.0015,0.5,s\nrows,3.0,3.0,3.0,rows/s\n");
}

TEST(FiguresTest, HostIsDescribed) {
  EXPECT_GE(DescribeHost()["cpus"], 1);
  EXPECT_FALSE(DescribeHost()["machine"].get<std::string>().empty());
}

}  // namespace
}  // namespace routing_replay::client
