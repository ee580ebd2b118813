#include <array>
#include <vector>

#include "client/c_api/testing/c_api_fixture.h"

namespace routing_replay::client {
namespace {

class CTrajectoryTest : public CApiTest {
 protected:
  void SetUp() override {
    CApiTest::SetUp();
    ASSERT_DONE(rr_run_new_appender(c_run_, nullptr, &appender_));
    const rr_trajectory_options options{.sample = Text("s"), .existing = Text("none"), .group = {7, 1}};
    ASSERT_DONE(rr_appender_new_trajectory(appender_, &options, &trajectory_));
  }
  void TearDown() override {
    rr_object_free(trajectory_);
    rr_object_free(appender_);
    CApiTest::TearDown();
  }
  // Rows [begin, end) of ids_, and the tokens up to the one after them.
  struct Given {
    std::array<int64_t, 3> shape;
    rr_tensor tensor;
    rr_turn turn;
  };
  void Give(int64_t begin, int64_t end, Given& given) {
    given.shape = {end - begin, 1, 1};
    given.tensor = {.data = ids_.data() + begin,
                    .size = static_cast<size_t>(end - begin),
                    .encoding = Text("RAW"),
                    .dtype = Text("U8"),
                    .layer_basis = Text("MOE_LAYERS"),
                    .shape = given.shape.data(),
                    .shape_count = 3};
    given.turn = {.rows = &given.tensor, .tokens = Tokens(end + 1), .row_start = begin, .outcome = Text("finished")};
  }
  rr_tokens Tokens(int64_t count) {
    return {.data = tokens_.data(), .size = static_cast<size_t>(count) * 4, .dtype = Text("uint32"), .axes = 1};
  }
  int64_t Rows(rr_trajectory* trajectory) {
    const rr_trajectory_state* state = nullptr;
    EXPECT_DONE(rr_trajectory_describe(trajectory, &state));
    const int64_t rows = state->rows;
    rr_free(state);
    return rows;
  }

  std::vector<uint8_t> ids_ = testing::ModelIds(random_, 200);
  std::vector<uint32_t> tokens_ = testing::MakeTokens(201, 1);
  rr_appender* appender_ = nullptr;
  rr_trajectory* trajectory_ = nullptr;
};

TEST_F(CTrajectoryTest, TurnsForksAndWhatTheyTell) {
  Given given;
  Give(0, 49, given);
  const rr_turn_result* turn = nullptr;
  ASSERT_DONE(rr_trajectory_add(trajectory_, &given.turn, &kBlocking, &turn));
  EXPECT_EQ(turn->num_tokens, 50);
  ASSERT_EQ(turn->appended.count, 1U);
  EXPECT_EQ(turn->appended.data[0].end, 49);
  EXPECT_EQ(turn->retokenised_at.present, 0);
  rr_free(turn);
  int64_t row = 0;
  const rr_tokens context = Tokens(80);
  ASSERT_DONE(rr_trajectory_next_row(trajectory_, &context, &row));
  EXPECT_EQ(row, 49);

  rr_trajectory* fork = nullptr;
  ASSERT_DONE(rr_trajectory_fork(trajectory_, Text("t"), &kBlocking, &fork));
  Give(0, 99, given);
  given.turn.seal = 1;
  ASSERT_DONE(rr_trajectory_add(fork, &given.turn, &kBlocking, &turn));
  EXPECT_EQ(turn->shared_rows, 49);
  rr_free(turn);

  const rr_turn cut{.seal = 1, .cut = {21, 1}};
  ASSERT_DONE(rr_trajectory_add(trajectory_, &cut, &kBlocking, &turn));
  EXPECT_EQ(turn->truncated_rows, 29);
  rr_free(turn);
  EXPECT_EQ(Failure(rr_appender_flush(appender_, &kBlocking)).reason, "GAP");  // The fake server knows no prefixes.
  ExpectStored("s", {ids_.begin(), ids_.begin() + 20});
  EXPECT_EQ(service_.Sample("s").group, 7);
  const rr_trajectory_state* state = nullptr;
  ASSERT_DONE(rr_trajectory_describe(trajectory_, &state));
  EXPECT_EQ(state->rows, 20);
  EXPECT_EQ(state->sealed, 1);
  rr_free(state);
  // A fork outlives its parent.
  rr_object_free(std::exchange(trajectory_, nullptr));
  rr_object_free(std::exchange(appender_, nullptr));
  EXPECT_EQ(Rows(fork), 99);
  rr_object_free(fork);
}

TEST_F(CTrajectoryTest, TurnsAreDoneInTheOrderOfTheirCalls) {
  TestQueue queue;
  std::array<Given, 20> given;
  std::array<const rr_turn_result*, 20> turns{};
  for (size_t i = 0; i < given.size(); ++i) {
    Give(10 * static_cast<int64_t>(i), 10 * static_cast<int64_t>(i) + 10, given[i]);
    const rr_call call = queue.Call(i);
    ASSERT_DONE(rr_trajectory_add(trajectory_, &given[i].turn, &call, &turns[i]));
  }
  for (const auto& [tag, failure] : queue.Wait(20)) EXPECT_EQ(failure.message, "");
  for (const rr_turn_result* turn : turns) rr_free(turn);
  ASSERT_DONE(rr_appender_flush(appender_, &kBlocking));
  ExpectStored("s", {ids_.begin(), ids_.begin() + 200});
}

TEST_F(CTrajectoryTest, WhatIsWrongWithATurn) {
  const rr_turn_result* turn = nullptr;
  Given given;
  Give(0, 9, given);
  given.turn.outcome = Text("done");
  EXPECT_EQ(Failure(rr_trajectory_add(trajectory_, &given.turn, &kBlocking, &turn)).field, "outcome");
  given.turn.outcome = {};
  given.turn.row_start = -1;
  EXPECT_EQ(Failure(rr_trajectory_add(trajectory_, &given.turn, &kBlocking, &turn)).field, "turn.row_start");
  given.turn.row_start = 0;
  given.turn.tokens = Tokens(30);
  const Failure missing(rr_trajectory_add(trajectory_, &given.turn, &kBlocking, &turn));
  EXPECT_EQ(missing.reason, "ROW_COUNT");
  given.turn.tokens.dtype = Text("float32");
  EXPECT_EQ(Failure(rr_trajectory_add(trajectory_, &given.turn, &kBlocking, &turn)).field, "tokens");
  const rr_turn cut{.cut = {0, 1}};
  EXPECT_EQ(Failure(rr_trajectory_add(trajectory_, &cut, &kBlocking, &turn)).field, "turn.cut");
  EXPECT_EQ(Rows(trajectory_), 0);

  rr_trajectory* other = nullptr;
  rr_trajectory_options options{.sample = Text("no id")};
  EXPECT_EQ(Failure(rr_appender_new_trajectory(appender_, &options, &other)).field, "sample");
  options = {.sample = Text("t"), .existing = Text("maybe")};
  EXPECT_EQ(Failure(rr_appender_new_trajectory(appender_, &options, &other)).field, "existing");
  EXPECT_EQ(Failure(rr_trajectory_fork(trajectory_, Text("no id"), &kBlocking, &other)).field, "sample");
}

}  // namespace
}  // namespace routing_replay::client
