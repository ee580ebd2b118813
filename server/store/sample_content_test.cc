#include "server/store/sample_rules.h"

#include <gtest/gtest.h>

#include <random>

namespace routing_replay::server {
namespace {

using List = std::vector<WeightSpan>;

TEST(WeightsTest, TheLastSpanGrowsIfTheWeightsAreTheSame) {
  List list;
  AppendWeights(list, {{0, 10}, 3, "a"});
  AppendWeights(list, {{10, 12}, 3, "a"});
  AppendWeights(list, {{12, 12}, 9, ""});
  AppendWeights(list, {{12, 21}, 3, "b"});
  AppendWeights(list, {{21, 22}, 4, "b"});
  EXPECT_EQ(list, (List{{{0, 12}, 3, "a"}, {{12, 21}, 3, "b"}, {{21, 22}, 4, "b"}}));
}

TEST(WeightsTest, TruncateCutsAndDrops) {
  const List list{{{0, 12}, 3, ""}, {{12, 20}, 4, ""}};
  for (int64_t rows : {0, 1, 11, 12, 13, 20}) {
    List cut = list;
    TruncateWeights(cut, rows);
    List expected;
    for (int64_t row = 0; row < rows; ++row) AppendWeights(expected, {{row, row + 1}, row < 12 ? 3 : 4, ""});
    EXPECT_EQ(cut, expected) << rows;
  }
}

TEST(WeightsTest, AnySplitGivesTheSameSpans) {
  std::mt19937 random(1);
  std::vector<int64_t> of_row(300);
  for (size_t row = 1; row < of_row.size(); ++row) {
    of_row[row] = random() % 10 == 0 ? static_cast<int64_t>(random() % 3) : of_row[row - 1];
  }
  List by_row, list;
  for (int64_t row = 0; row < 300; ++row) AppendWeights(by_row, {{row, row + 1}, of_row[row], ""});
  for (int64_t row = 0; row < 300;) {
    int64_t end = row + 1;
    while (end < 300 && of_row[end] == of_row[row] && random() % 8 != 0) ++end;
    AppendWeights(list, {{row, end}, of_row[row], ""});
    row = end;
  }
  EXPECT_EQ(list, by_row);
}

}  // namespace
}  // namespace routing_replay::server
