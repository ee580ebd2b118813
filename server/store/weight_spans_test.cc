#include "server/store/weight_spans.h"

#include <gtest/gtest.h>

#include <random>

namespace routing_replay {
namespace {

TEST(WeightSpansTest, GrowsTheLastSpanOfTheSameVersionAndLabel) {
  std::vector<WeightSpan> spans;
  AppendSpan(spans, {{0, 10}, 3, "a"});
  AppendSpan(spans, {{10, 12}, 3, "a"});
  AppendSpan(spans, {{12, 12}, 9, ""});
  AppendSpan(spans, {{12, 20}, 3, "b"});
  AppendSpan(spans, {{20, 21}, 4, "b"});
  EXPECT_EQ(spans, (std::vector<WeightSpan>{{{0, 12}, 3, "a"}, {{12, 20}, 3, "b"}, {{20, 21}, 4, "b"}}));
}

TEST(WeightSpansTest, TruncateCutsAndDrops) {
  const std::vector<WeightSpan> spans{{{0, 12}, 3, ""}, {{12, 20}, 4, ""}};
  for (int64_t rows : {0, 1, 11, 12, 13, 20}) {
    std::vector<WeightSpan> cut = spans;
    TruncateSpans(cut, rows);
    std::vector<WeightSpan> expected;
    for (int64_t row = 0; row < rows; ++row) AppendSpan(expected, {{row, row + 1}, row < 12 ? 3 : 4, ""});
    EXPECT_EQ(cut, expected) << rows;
  }
}

// Row by row and in any split the list is the same.
TEST(WeightSpansTest, AnySplitGivesTheSameSpans) {
  std::mt19937 random(1);
  std::vector<int64_t> version_of_row(300);
  for (size_t row = 1; row < version_of_row.size(); ++row) {
    version_of_row[row] = random() % 10 == 0 ? static_cast<int64_t>(random() % 3) : version_of_row[row - 1];
  }
  std::vector<WeightSpan> expected;
  for (int64_t row = 0; row < 300; ++row) AppendSpan(expected, {{row, row + 1}, version_of_row[row], ""});
  std::vector<WeightSpan> spans;
  for (int64_t row = 0; row < 300;) {
    int64_t end = row + 1;
    while (end < 300 && version_of_row[end] == version_of_row[row] && random() % 8 != 0) ++end;
    AppendSpan(spans, {{row, end}, version_of_row[row], ""});
    row = end;
  }
  EXPECT_EQ(spans, expected);
}

}  // namespace
}  // namespace routing_replay
