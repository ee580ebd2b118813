#include "routing_replay/trainer/on_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace routing_replay::trainer {
namespace {

using Spans = std::vector<WeightSpan>;

WeightSummary Summarize(const std::vector<Spans>& samples, std::optional<int64_t> current = std::nullopt) {
  return SummarizeWeights(std::vector<absl::Span<const WeightSpan>>(samples.begin(), samples.end()), current);
}

TEST(OnPolicy, VersionsOfOneNumberAndTwoLabelsAreTwo) {
  const Spans unknown = {{{0, 3}, -1, "a"}, {{3, 9}, -1, "b"}};
  const Spans known = {{{0, 3}, 4, "a"}, {{3, 9}, 4, "b"}};
  const Spans same = {{{0, 3}, -1, "a"}, {{5, 9}, -1, "a"}};
  const WeightSummary said = Summarize({{}, same, unknown, known}, 6);
  EXPECT_EQ(said.samples, 3);
  EXPECT_EQ(said.mixed, 2);
  EXPECT_EQ(said.first_mixed, 2u);
  EXPECT_EQ(said.oldest, 4);
  EXPECT_EQ(said.lag, 2);
}

TEST(OnPolicy, RowsOfAnUnknownVersionAreNotTheOldest) {
  const WeightSummary said = Summarize({{{{0, 3}, -1, ""}, {{3, 9}, 5, ""}}}, 9);
  EXPECT_EQ(said.mixed, 1);
  EXPECT_EQ(said.oldest, 5);
  EXPECT_EQ(said.lag, 4);
}

TEST(OnPolicy, WhatNobodyKnowsIsNotSaid) {
  const WeightSummary nothing = Summarize({{}, {}}, 3);
  EXPECT_EQ(nothing.samples, 0);
  EXPECT_FALSE(nothing.first_mixed || nothing.oldest || nothing.lag);
  EXPECT_FALSE(Summarize({{{{0, 2}, -1, "x"}}}, 3).lag);
  EXPECT_FALSE(Summarize({{{{0, 2}, 1, ""}}}, kUnknownWeightVersion).lag);
  EXPECT_EQ(Summarize({{{{0, 2}, 7, ""}}}, 5).lag, -2);
}

TEST(OnPolicy, AsAReferenceSays) {
  std::mt19937 random(1);
  const auto below = [&](int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random); };
  for (int round = 0; round < 500; ++round) {
    std::vector<Spans> samples(below(5));
    int64_t mixed = 0;
    std::set<int64_t> numbers;
    for (Spans& spans : samples) {
      std::set<std::pair<int64_t, std::string>> versions;
      for (int64_t i = below(4); i > 0; --i) {
        spans.push_back({{i, i + 1}, below(3) - 1, std::string(below(2), 'x')});
        versions.emplace(spans.back().version, spans.back().label);
        if (spans.back().version >= 0) numbers.insert(spans.back().version);
      }
      mixed += versions.size() > 1;
    }
    const WeightSummary said = Summarize(samples, 8);
    EXPECT_EQ(said.mixed, mixed);
    EXPECT_EQ(said.first_mixed.has_value(), mixed > 0);
    EXPECT_EQ(said.samples, std::count_if(samples.begin(), samples.end(), [](const Spans& s) { return !s.empty(); }));
    EXPECT_EQ(said.oldest, numbers.empty() ? std::nullopt : std::optional(*numbers.begin()));
    EXPECT_EQ(said.lag, numbers.empty() ? std::nullopt : std::optional(8 - *numbers.begin()));
  }
}

}  // namespace
}  // namespace routing_replay::trainer
