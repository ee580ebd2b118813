#include "client/rrctl/report/sample_tables.h"

#include <gtest/gtest.h>

#include <limits>

namespace routing_replay::client {
namespace {

SampleState Sample(const std::string& name, int64_t group, int64_t rows, std::vector<RowRange> unrecorded = {}) {
  SampleState state;
  state.sample = name;
  state.group = group;
  state.committed_rows = rows;
  state.unrecorded = std::move(unrecorded);
  return state;
}

TEST(SampleTablesTest, LengthsAreTokensWhereTheyAreKnown) {
  std::vector<SampleState> samples = {Sample("a", 0, 9), Sample("b", 0, 19), Sample("c", 0, 29)};
  samples[0].num_tokens = 10;
  const Document lengths = LengthTable(samples);
  EXPECT_EQ(lengths["samples"], 3);
  EXPECT_EQ(lengths["median"], 19);
  EXPECT_EQ(lengths["longest"], 29);
  int64_t counted = 0;
  for (const Document& count : lengths["counts"]) counted += count.get<int64_t>();
  EXPECT_EQ(counted, 3);
  EXPECT_TRUE(LengthTable({})["median"].is_null());
}

TEST(SampleTablesTest, TheWorstSamplesFirst) {
  std::vector<SampleState> samples = {Sample("whole", 1, 100), Sample("b", 2, 50, {{0, 4}}),
                                      Sample("a", 3, 50, {{0, 4}})};
  samples.push_back(Sample("lost", 4, 10));
  samples.back().lost_end = 30;
  int64_t missing_samples = 0;
  const Document missing = MissingTable(samples, missing_samples);
  EXPECT_EQ(missing_samples, 3);
  ASSERT_EQ(missing.size(), 3u);
  EXPECT_EQ(missing[0],
            Document({{"sample", "lost"}, {"group", 4}, {"rows", 30}, {"unrecorded_rows", 0}, {"lost_rows", 20}}));
  EXPECT_EQ(missing[1]["sample"], "a");
  EXPECT_EQ(missing[2]["unrecorded_rows"], 4);
}

TEST(SampleTablesTest, GroupsAreCountedWhereTheyBelong) {
  const std::vector<SampleState> samples = {Sample("a", -3, 10, {{2, 5}}), Sample("b", 7, 20), Sample("c", 7, 1)};
  const auto ranges = GroupRanges(samples);
  EXPECT_EQ(ranges, (std::vector<std::pair<int64_t, int64_t>>{{-3, -2}, {7, 8}}));
  const Document groups = GroupTable(samples, ranges);
  EXPECT_EQ(groups[0]["unrecorded_rows"], 3);
  EXPECT_EQ(groups[1]["samples"], 2);
  EXPECT_EQ(groups[1]["rows"], 21);
}

TEST(SampleTablesTest, ManyGroupsShareRanges) {
  std::vector<SampleState> samples;
  for (int64_t i = 0; i < 1000; ++i) samples.push_back(Sample("s", i * i, 1));
  const auto ranges = GroupRanges(samples);
  EXPECT_LE(ranges.size(), 64u);
  const Document groups = GroupTable(samples, ranges);
  int64_t counted = 0;
  for (const Document& group : groups) counted += group["samples"].get<int64_t>();
  EXPECT_EQ(counted, 1000);
  EXPECT_EQ(groups.back()["end"], 999 * 999 + 1);
  EXPECT_TRUE(GroupRanges({}).empty());
}

}  // namespace
}  // namespace routing_replay::client
