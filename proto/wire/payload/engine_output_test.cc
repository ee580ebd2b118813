#include "proto/wire/payload/engine_output.h"

#include <random>

#include "proto/wire/payload/engine_output.h"
#include "tests/support/status_matchers.h"

namespace routing_replay {
namespace {

using testing::Fails;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Every small claim against a list of the sample's rows, laid against the tensor's slots from the back.
TEST(RowAccountTest, SlotsAreTheLastRowsThatWereAskedFor) {
  for (int64_t prompt = 0; prompt <= 5; ++prompt) {
    for (int64_t output = 0; output <= 4; ++output) {
      std::vector<int64_t> fed;  // Positions whose token was fed to the model.
      for (int64_t token = 0; token + 1 < prompt + output; ++token) fed.push_back(token);
      for (int64_t start = 0; start <= prompt; ++start) {
        std::vector<int64_t> asked(fed.begin() + std::min<int64_t>(start, fed.size()), fed.end());
        for (int64_t rows = 0; rows <= 12; ++rows) {
          for (const ShortRows policy : {ShortRows::kRefuse, ShortRows::kMissingAtFront}) {
            const auto account = AccountRows({prompt, output, start, rows, policy});
            const auto count = static_cast<int64_t>(asked.size());
            const bool surplus = rows > 0 && start + rows == prompt + output && start != 1;
            const bool is_short = rows < count && policy == ShortRows::kMissingAtFront;
            if (rows != count && !surplus && !is_short) {
              ASSERT_THAT(account, Fails(kInvalid, Reason::kRowCount));
              continue;
            }
            ASSERT_OK(account);
            EXPECT_EQ(account->surplus_rows, surplus ? 1 : 0);
            EXPECT_EQ(account->missing_rows, std::max<int64_t>(0, count - rows));
            EXPECT_EQ(account->row_start, start);
            EXPECT_EQ(account->take, (RowRange{0, rows - account->surplus_rows}));
            std::vector<int64_t> covered;
            for (int64_t i = 0; i < account->missing_rows + account->take.size(); ++i) covered.push_back(start + i);
            EXPECT_EQ(covered, asked);
          }
        }
      }
    }
  }
}

TEST(RowAccountTest, AnIgnoredStartIsNamed) {
  for (const int64_t rows : {9, 10}) {
    const auto account = AccountRows({.prompt_tokens = 6, .output_tokens = 4, .start = 3, .rows = rows});
    EXPECT_THAT(account.status().message(), HasSubstr("ignored the start row"));
  }
  // One row more from row 1 on: of the last token, or row 0. Nobody can tell.
  const auto account = AccountRows({.prompt_tokens = 6, .output_tokens = 4, .start = 1, .rows = 9});
  EXPECT_THAT(account, Fails(kInvalid, Reason::kRowCount));
  EXPECT_THAT(account.status().message(), HasSubstr("one of the last token is among them, or"));
}

TEST(RowAccountTest, CountsThatCannotBe) {
  for (const RowClaim& claim :
       {RowClaim{-1, 4, 0, 2}, RowClaim{4, -1, 0, 2}, RowClaim{4, 4, -1, 7}, RowClaim{4, 4, 5, 2},
        RowClaim{4, 4, 0, -1}, RowClaim{INT64_MAX, INT64_MAX, 0, 2}, RowClaim{4, 4, 0, INT64_MAX}}) {
    EXPECT_THAT(AccountRows(claim), Fails(kInvalid, Reason::kField));
  }
}

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
