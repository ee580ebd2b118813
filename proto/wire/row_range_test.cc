// Compares range lists with sets of single rows.
#include "routing_replay/wire/row_range.h"

#include <random>
#include <set>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using Rows = std::set<int64_t>;

Rows Expand(absl::Span<const RowRange> ranges) {
  Rows rows;
  for (RowRange r : ranges) {
    for (int64_t row = r.begin; row < r.end; ++row) rows.insert(row);
  }
  return rows;
}

// Returns `rows` as a normal list of ranges; there is exactly one.
std::vector<RowRange> Normal(const Rows& rows) {
  std::vector<RowRange> out;
  for (const int64_t row : rows) {
    if (rows.count(row - 1) == 0) out.push_back({row, row});
    ++out.back().end;
  }
  return out;
}

Rows RandomRows(std::mt19937_64& random, int64_t end) {
  Rows rows;
  const uint64_t density = 1 + random() % 9;
  for (int64_t row = 0; row < end; ++row) {
    if (random() % 10 < density) rows.insert(row);
  }
  return rows;
}

RowRange RandomRange(std::mt19937_64& random, int64_t end) {
  const auto a = static_cast<int64_t>(random() % (end + 1)), b = static_cast<int64_t>(random() % (end + 1));
  return {std::min(a, b), std::max(a, b)};
}

TEST(RowRangeTest, ValueFunctions) {
  constexpr RowRange kRange = RowRange::OfSize(3, 4);
  EXPECT_EQ(kRange, (RowRange{3, 7}));
  EXPECT_EQ(kRange.size(), 4);
  EXPECT_FALSE(kRange.empty());
  EXPECT_TRUE((RowRange{3, 3}).empty());
  EXPECT_TRUE((RowRange{4, 3}).empty());
  EXPECT_EQ(ToString(kRange), "[3, 7)");
}

TEST(RowRangeTest, PairsOfRanges) {
  for (int64_t a = 0; a < 7; ++a) {
    for (int64_t b = a; b < 7; ++b) {
      const RowRange left{a, b};
      for (int64_t row = -1; row < 8; ++row) EXPECT_EQ(left.contains(row), Expand({left}).count(row) == 1);
      for (int64_t c = 0; c < 7; ++c) {
        for (int64_t d = c + 1; d < 7; ++d) {
          const RowRange right{c, d};
          Rows common;
          for (const int64_t row : Expand({left})) {
            if (right.contains(row)) common.insert(row);
          }
          EXPECT_EQ(Expand({Intersect(left, right)}), common);
          EXPECT_EQ(Intersect(left, right).empty(), common.empty());
          EXPECT_GE(Intersect(left, right).size(), 0);
          EXPECT_EQ(left.contains(right), static_cast<int64_t>(common.size()) == right.size());
        }
      }
    }
  }
}

TEST(RowRangeTest, ListsAreWhatSetsAre) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; ++round) {
    const int64_t end = 1 + static_cast<int64_t>(random() % 40);
    const Rows rows = RandomRows(random, end);
    const std::vector<RowRange> list = Normal(rows);
    const RowRange bounds = RandomRange(random, end);
    Rows inside, outside;
    for (int64_t row = bounds.begin; row < bounds.end; ++row) (rows.count(row) == 1 ? inside : outside).insert(row);
    EXPECT_OK(CheckNormal(list, {0, end}));
    EXPECT_EQ(Clip(list, bounds), Normal(inside));
    EXPECT_EQ(Subtract(bounds, list), Normal(outside));
    EXPECT_EQ(TotalRows(list), static_cast<int64_t>(rows.size()));
  }
}

TEST(RowRangeTest, AppendMergedKeepsAListNormal) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 1000; ++round) {
    std::vector<RowRange> list;
    Rows rows;
    int64_t next = 0;
    for (int i = 0; i < 10; ++i) {
      const RowRange range = RowRange::OfSize(next + static_cast<int64_t>(random() % 3), random() % 3);
      next = std::max(next, range.end);
      AppendMerged(list, range);
      rows.merge(Expand({range}));
    }
    EXPECT_EQ(list, Normal(rows));
  }
}

TEST(RowRangeTest, ListsThatAreNotNormal) {
  const RowRange bounds{10, 20};
  for (const std::vector<RowRange>& list : std::vector<std::vector<RowRange>>{{{12, 12}},
                                                                              {{13, 12}},
                                                                              {{9, 12}},
                                                                              {{19, 21}},
                                                                              {{0, 5}},
                                                                              {{20, 25}},
                                                                              {{10, 12}, {12, 14}},
                                                                              {{10, 12}, {11, 14}},
                                                                              {{14, 16}, {10, 12}},
                                                                              {{10, 12}, {10, 12}},
                                                                              {{INT64_MIN, INT64_MAX}}}) {
    EXPECT_EQ(CheckNormal(list, bounds).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_OK(CheckNormal({}, bounds));
  EXPECT_OK(CheckNormal({{10, 20}}, bounds));
  EXPECT_OK(CheckNormal({{10, 12}, {13, 20}}, bounds));
  const absl::Status second = CheckNormal({{10, 12}, {12, 14}}, bounds);
  EXPECT_NE(second.message().find("range 1 [12, 14)"), absl::string_view::npos) << second;
}

TEST(RowRangeTest, WindowsAreAbsolute) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 1000; ++round) {
    const RowRange range = RandomRange(random, 300);
    const auto window = static_cast<int64_t>(1 + random() % 70);
    int64_t next = range.begin;
    for (RowRange part : SplitAtWindows(range, window)) {
      EXPECT_EQ(part.begin, next);
      EXPECT_FALSE(part.empty());
      EXPECT_EQ(part.begin / window, (part.end - 1) / window);
      EXPECT_TRUE(part.end == range.end || part.end % window == 0);
      next = part.end;
    }
    EXPECT_EQ(next, range.end);
    EXPECT_EQ(WindowCount(range.end, window), static_cast<int64_t>(SplitAtWindows({0, range.end}, window).size()));
  }
}

}  // namespace
}  // namespace routing_replay
