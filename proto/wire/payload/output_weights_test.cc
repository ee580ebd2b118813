#include "proto/wire/payload/output_weights.h"

#include <random>

#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(OutputWeightsTest, NumbersOfVersions) {
  EXPECT_EQ(VersionNumber("0"), 0);
  EXPECT_EQ(VersionNumber("17"), 17);
  EXPECT_EQ(VersionNumber("9223372036854775807"), INT64_MAX);
  for (const char* text : {"", "9223372036854775808", "-1", "+1", " 1", "1.7", "0x3", "step-3"}) {
    EXPECT_EQ(VersionNumber(text), kUnknownWeightVersion) << text;
  }
}

// Each row against the version of the output token that its forward pass sampled.
TEST(OutputWeightsTest, RowsHaveTheVersionOfTheTokenTheySampled) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const int64_t prompt = 1 + random() % 6, output = 1 + random() % 7, start = random() % (prompt + 1);
    std::vector<int64_t> version_of(output, kUnknownWeightVersion);
    std::vector<VersionedTokens> spans;
    for (int64_t token = random() % 2; token < output;) {
      const int64_t end = std::min<int64_t>(output, token + random() % 3);
      spans.push_back({token, end, static_cast<int64_t>(spans.size()), "v"});
      std::fill(version_of.begin() + token, version_of.begin() + end, spans.back().version);
      token = end + random() % 2;
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<WeightSpan> weights, OutputWeights(spans, prompt, output, start));
    std::vector<int64_t> expected(prompt + output, kUnknownWeightVersion), found = expected;
    for (int64_t row = start; row < prompt - 1 + output; ++row) {
      const int64_t token = std::max<int64_t>(0, row - (prompt - 1));
      expected[row] = version_of[token];
    }
    int64_t end = start;
    for (const WeightSpan& span : weights) {
      ASSERT_GE(span.rows.begin, end);
      ASSERT_FALSE(span.rows.empty());
      std::fill(found.begin() + span.rows.begin, found.begin() + span.rows.end, span.version);
      end = span.rows.end;
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(OutputWeightsTest, AnAnswerWithoutOutputHasTheRowsOfItsPrompt) {
  ASSERT_OK_AND_ASSIGN(const std::vector<WeightSpan> weights, OutputWeights({{0, 0, 5, "five"}}, 4, 0, 1));
  EXPECT_EQ(weights, (std::vector<WeightSpan>{{{1, 3}, 5, "five"}}));
}

TEST(OutputWeightsTest, SpansThatCannotBeAreNamed) {
  for (const std::vector<VersionedTokens>& spans :
       {std::vector<VersionedTokens>{{0, 5}}, {{0, 2}, {1, 3}}, {{2, 1}}, {{-1, 2}}, {{0, 1}, {3, 9}}}) {
    EXPECT_THAT(OutputWeights(spans, 3, 4, 0), Fails(kInvalid, Reason::kField));
  }
  EXPECT_THAT(OutputWeights({}, -1, 4, 0), Fails(kInvalid, Reason::kField));
}

}  // namespace
}  // namespace routing_replay
