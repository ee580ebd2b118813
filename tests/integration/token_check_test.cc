// Rows belong to tokens: rows of another trajectory must never be stored under a used id.
#include "tests/integration/fixture.h"

namespace routing_replay::testing {
namespace {

class TokenCheckTest : public ServerTest {
 protected:
  void SetUp() override {
    StartServer();
    run_ = OpenRun("tokens", geometry_);
    ASSERT_OK(PutRows(*run_, routes_, {0, 600}, {.sample = "a", .token_ids = tokens_, .seal_num_tokens = 601}));
  }
  void ExpectRejected(const absl::StatusOr<AppendOutcome>& outcome, int64_t block) {
    EXPECT_THAT(outcome, Fails(absl::StatusCode::kAlreadyExists, Reason::kOtherTokens));
    const auto detail = GetErrorDetail(outcome.status());
    ASSERT_TRUE(detail.has_value());
    EXPECT_EQ(detail->sample, "a");
    EXPECT_EQ(detail->first_differing_block, block);
    ExpectRows(*run_, "a", routes_, {{0, 600}});
  }

  const Geometry geometry_ = Geometry::Uniform(3, 128, 8);
  const RandomRoutes routes_ = MakeRandomRoutes(geometry_, 600, 1);
  const std::vector<uint32_t> tokens_ = MakeTokens(601, 1);
  RunHandle run_;
};

TEST_F(TokenCheckTest, TwoWorkersWithOneId) {
  const RandomRoutes other = MakeRandomRoutes(geometry_, 700, 2);
  const std::vector<uint32_t> tokens = MakeTokens(701, 2);
  ExpectRejected(PutRows(*run_, other, {0, 700}, {.sample = "a", .token_ids = tokens, .seal_num_tokens = 701}), 0);
}

TEST_F(TokenCheckTest, RegeneratedWithoutRestart) {
  // The sample is generated again: the prompt is the same, but from token 300 on there is another, shorter answer.
  std::vector<uint32_t> tokens = MakeTokens(501, 3);
  std::copy_n(tokens_.begin(), 300, tokens.begin());
  const RandomRoutes other = MakeRandomRoutes(geometry_, 500, 3);
  ExpectRejected(PutRows(*run_, other, {0, 500}, {.sample = "a", .token_ids = tokens, .seal_num_tokens = 501}), 1);
}

TEST_F(TokenCheckTest, RestartIsTheWayToRegenerate) {
  const RandomRoutes other = MakeRandomRoutes(geometry_, 500, 3);
  const std::vector<uint32_t> tokens = MakeTokens(501, 3);
  for (int retry = 0; retry < 2; ++retry) {
    ASSERT_OK_AND_ASSIGN(const AppendOutcome outcome,
                         PutRows(*run_, other, {0, 500},
                                 {.sample = "a", .restart_nonce = 77, .token_ids = tokens, .seal_num_tokens = 501}));
    EXPECT_EQ(outcome.revision, 1);
  }
  ExpectRows(*run_, "a", other, {{0, 500}});
}

TEST_F(TokenCheckTest, RowsShiftedByOne) {
  // Row i of the copy is row i + 1 of the original: tokens and routes are both shifted.
  RandomRoutes shifted{.rows = 599};
  for (const auto& layer : routes_.layers) shifted.layers.emplace_back(layer.begin() + 8, layer.end());
  const std::vector<uint32_t> tokens(tokens_.begin() + 1, tokens_.end());
  ExpectRejected(PutRows(*run_, shifted, {0, 599}, {.sample = "a", .token_ids = tokens}), 0);
}

TEST_F(TokenCheckTest, EqualTokensAndOtherRoutesAreCountedAndNotStored) {
  const RandomRoutes prefilled_again = MakeRandomRoutes(geometry_, 600, 9);
  ASSERT_OK_AND_ASSIGN(const AppendOutcome outcome,
                       PutRows(*run_, prefilled_again, {0, 600}, {.sample = "a", .token_ids = tokens_}));
  EXPECT_EQ(outcome.trimmed_rows, 600);
  EXPECT_EQ(outcome.conflicting_rows, 600);
  ExpectRows(*run_, "a", routes_, {{0, 600}});
}

}  // namespace
}  // namespace routing_replay::testing
