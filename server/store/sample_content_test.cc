#include "server/store/sample_rules.h"

#include <gtest/gtest.h>

#include <random>

namespace routing_replay::server {
namespace {

using Spans = std::vector<WeightSpan>;
using List = std::vector<Provenance>;

TEST(ProvenanceTest, GrowsTheLastEntryOfTheSameOrigin) {
  List list;
  AppendProvenance(list, {{0, 10}, 3, "a", "x", 1});
  AppendProvenance(list, {{10, 12}, 3, "a", "x", 1});
  AppendProvenance(list, {{12, 12}, 9, "", "", 1});
  AppendProvenance(list, {{12, 20}, 3, "b", "x", 1});
  AppendProvenance(list, {{20, 21}, 3, "b", "y", 1});
  AppendProvenance(list, {{21, 22}, 4, "b", "y", 1});
  EXPECT_EQ(list, (List{{{0, 12}, 3, "a", "x", 2},
                        {{12, 20}, 3, "b", "x", 1},
                        {{20, 21}, 3, "b", "y", 1},
                        {{21, 22}, 4, "b", "y", 1}}));
  EXPECT_EQ(WeightSpansOf(list), (Spans{{{0, 12}, 3, "a"}, {{12, 21}, 3, "b"}, {{21, 22}, 4, "b"}}));
}

TEST(ProvenanceTest, TruncateCutsAndDrops) {
  const List list{{{0, 12}, 3, "", "", 2}, {{12, 20}, 4, "", "", 1}};
  for (int64_t rows : {0, 1, 11, 12, 13, 20}) {
    List cut = list;
    TruncateProvenance(cut, rows);
    List expected;
    for (int64_t row = 0; row < rows; ++row) {
      AppendProvenance(expected, {{row, row + 1}, row < 12 ? 3 : 4, "", "", row == 0 || row == 1 || row == 12});
    }
    if (rows == 1) expected[0].appends = 2;  // Stay counted.
    EXPECT_EQ(cut, expected) << rows;
  }
}

// However rows are split into appends, the spans are the same, and every append is counted once.
TEST(ProvenanceTest, AnySplitGivesTheSameSpans) {
  std::mt19937 random(1);
  struct Origin {
    int64_t version = 0;
    std::string engine;
    bool operator==(const Origin&) const = default;
  };
  std::vector<Origin> of_row(300);
  for (size_t row = 1; row < of_row.size(); ++row) {
    of_row[row] = of_row[row - 1];
    if (random() % 10 == 0) of_row[row].version = static_cast<int64_t>(random() % 3);
    if (random() % 20 == 0) of_row[row].engine = random() % 2 == 0 ? "x" : "y";
  }
  List by_row, list;
  for (int64_t row = 0; row < 300; ++row) {
    AppendProvenance(by_row, {{row, row + 1}, of_row[row].version, "", of_row[row].engine, 1});
  }
  int64_t appends = 0;
  for (int64_t row = 0; row < 300; ++appends) {
    int64_t end = row + 1;
    while (end < 300 && of_row[end] == of_row[row] && random() % 8 != 0) ++end;
    AppendProvenance(list, {{row, end}, of_row[row].version, "", of_row[row].engine, 1});
    row = end;
  }
  EXPECT_EQ(WeightSpansOf(list), WeightSpansOf(by_row));
  ASSERT_EQ(list.size(), by_row.size());
  for (size_t i = 0; i < list.size(); ++i) {
    appends -= list[i].appends;
    EXPECT_EQ(list[i].rows, by_row[i].rows);
    EXPECT_EQ(list[i].engine, by_row[i].engine);
  }
  EXPECT_EQ(appends, 0);
}

}  // namespace
}  // namespace routing_replay::server
