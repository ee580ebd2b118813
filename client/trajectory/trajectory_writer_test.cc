#include "client/trajectory/trajectory_writer.h"

#include <thread>

#include "client/call/cancellation.h"
#include "client/testing/client_fixture.h"

namespace routing_replay::client {
namespace {

using testing::Do;
using testing::Fails;
using testing::kLong;
using testing::MakeTokens;
using testing::ModelIds;

class TrajectoryWriterTest : public testing::ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    appender_ = run_->NewAppender();
    tokens_ = MakeTokens(200, 1);
    ids_ = ModelIds(random_, 200);
  }
  std::unique_ptr<TrajectoryWriter> New(const std::string& sample,
                                        Trajectory::Existing existing = Trajectory::Existing::kNone) {
    auto made = TrajectoryWriter::New(run_, appender_, {.trajectory = {.sample = sample, .existing = existing}});
    EXPECT_OK(made);
    return *std::move(made);
  }
  // Rows [range) and the first `tokens` tokens.
  absl::StatusOr<TurnResult> Add(TrajectoryWriter& writer, RowRange range, int64_t tokens, bool seal = false) {
    const TurnRows rows{.tensor = Tensor(range), .payload = Bytes(ids_, range), .row_start = range.begin};
    return writer.Add({.tokens = absl::MakeConstSpan(tokens_).first(tokens), .seal = seal}, &rows);
  }

  std::mt19937_64 random_{1};
  std::shared_ptr<Appender> appender_;
  std::vector<uint32_t> tokens_;
  std::vector<uint8_t> ids_;
};

TEST_F(TrajectoryWriterTest, TurnsBecomeOneSample) {
  const auto writer = New("s");
  ASSERT_OK_AND_ASSIGN(const TurnResult first, Add(*writer, {0, 9}, 10));
  EXPECT_EQ(first.decision.num_tokens, 10);
  EXPECT_EQ(first.appended, (std::vector<RowRange>{{0, 9}}));
  EXPECT_EQ(writer->NextRow(absl::MakeConstSpan(tokens_).first(50)), 9);
  ASSERT_OK_AND_ASSIGN(const TurnResult second, Add(*writer, {5, 49}, 50, true));
  EXPECT_EQ(second.appended, (std::vector<RowRange>{{9, 49}}));
  EXPECT_EQ(second.decision.repeated_rows(), 4);
  ASSERT_OK(appender_->Flush(kLong));
  ExpectStored("s", {ids_.begin(), ids_.begin() + 49});
  EXPECT_EQ(service_.Sample("s").num_tokens, 50);
  const TrajectoryWriter::State state = writer->state();
  EXPECT_EQ(state.rows, 49);
  EXPECT_TRUE(state.sealed);
  EXPECT_EQ(Add(*writer, {0, 3}, 9).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TrajectoryWriterTest, RowsOfTokensThatChangedAreTakenBack) {
  const auto writer = New("s");
  ASSERT_OK(Add(*writer, {0, 99}, 100).status());
  tokens_[40] ^= 1;
  ids_[40] ^= 1;
  ASSERT_OK_AND_ASSIGN(const TurnResult turn, Add(*writer, {40, 119}, 120));
  EXPECT_EQ(turn.decision.retokenised_at, 40);
  EXPECT_EQ(turn.truncated_rows, 59);
  ASSERT_OK(appender_->Flush(kLong));
  ExpectStored("s", {ids_.begin(), ids_.begin() + 119});
  EXPECT_EQ(service_.Sample("s").revision, 1);
  ASSERT_OK(writer->Add({.tokens = absl::Span<const uint32_t>(), .tokens_start = 11, .cut = true}, nullptr).status());
  EXPECT_EQ(writer->state().rows, 10);
  EXPECT_EQ(service_.Sample("s").revision, 2);
}

TEST_F(TrajectoryWriterTest, ATruncationIsTriedAgainWhileItIsUncertain) {
  const auto writer = New("s");
  ASSERT_OK(Add(*writer, {0, 99}, 100).status());
  ASSERT_OK(appender_->Flush(kLong));
  tokens_[40] ^= 1;
  service_.FailNext(1);
  ASSERT_OK_AND_ASSIGN(const TurnResult turn, Add(*writer, {40, 99}, 100));
  EXPECT_EQ(turn.truncated_rows, 59);
  EXPECT_EQ(service_.Calls("Truncate"), 2);
  EXPECT_EQ(service_.Calls("Stat"), 1);  // Asks for the state after the failed truncation.
}

TEST_F(TrajectoryWriterTest, AfterAnAppendThatFailedTheServerIsAsked) {
  const auto writer = New("s");
  ASSERT_OK(Add(*writer, {0, 9}, 10).status());
  ASSERT_OK(appender_->Flush(kLong));
  ASSERT_OK(run_->Truncate("s", Producer::kRollout, 5, {}));  // Another writer truncates the sample.
  ASSERT_OK(Add(*writer, {9, 19}, 20).status());
  EXPECT_THAT(appender_->Flush(kLong), Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
  ASSERT_OK_AND_ASSIGN(const TurnResult turn, Add(*writer, {0, 29}, 30));
  EXPECT_EQ(turn.appended, (std::vector<RowRange>{{5, 29}}));
  ASSERT_OK(appender_->Flush(kLong));
  ExpectStored("s", {ids_.begin(), ids_.begin() + 29});
  EXPECT_EQ(service_.Sample("s").revision, 1);
}

TEST_F(TrajectoryWriterTest, ASampleOfAnEarlierWriterIsGoneOnWith) {
  ASSERT_OK(Add(*New("s"), {0, 9}, 10).status());
  ASSERT_OK(appender_->Flush(kLong));
  const auto writer = New("s", Trajectory::Existing::kResume);
  ASSERT_OK_AND_ASSIGN(const TurnResult turn, Add(*writer, {0, 49}, 50));
  EXPECT_EQ(turn.appended, (std::vector<RowRange>{{9, 49}}));
  EXPECT_EQ(turn.decision.uncompared_rows, 9);
}

TEST_F(TrajectoryWriterTest, AForkSharesWhatIsAcknowledged) {
  const auto writer = New("s");
  ASSERT_OK(Add(*writer, {0, 99}, 100).status());
  EXPECT_FALSE(writer->Fork("no id", kLong).ok());
  ASSERT_OK_AND_ASSIGN(const auto fork, writer->Fork("t", kLong));
  EXPECT_EQ(fork->NextRow(absl::MakeConstSpan(tokens_).first(120)), 99);
  tokens_[60] ^= 1;
  EXPECT_EQ(fork->NextRow(absl::MakeConstSpan(tokens_).first(120)), 60);
  ASSERT_OK_AND_ASSIGN(const TurnResult turn, Add(*fork, {60, 119}, 120));
  EXPECT_EQ(turn.decision.shared_rows(), 60);
  EXPECT_EQ(turn.appended, (std::vector<RowRange>{{60, 119}}));
}

TEST_F(TrajectoryWriterTest, DroppedRowsAreTold) {
  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  appender_ = run_->NewAppender(
      {.max_queued_bytes = 10, .queue_timeout = std::chrono::milliseconds(0), .drop_when_full = true});
  const auto writer = New("s");
  ASSERT_OK(Add(*writer, {0, 9}, 10).status());
  ASSERT_OK_AND_ASSIGN(const TurnResult turn, Add(*writer, {9, 19}, 20));
  EXPECT_EQ(turn.dropped_rows, 10);
  EXPECT_THAT(Add(*writer, {19, 25}, 40).status(), Fails(absl::StatusCode::kInvalidArgument, Reason::kRowCount));
}

TEST_F(TrajectoryWriterTest, TurnsOfManyThreadsAreDoneOneAfterTheOther) {
  const auto writer = New("s");
  std::vector<TrajectoryWriter::Place> places;
  for (int i = 0; i < 10; ++i) places.push_back(writer->order().Take());
  std::vector<std::thread> threads;
  for (int64_t i = 9; i >= 0; --i) {
    threads.emplace_back([&, i, place = std::move(places[i])]() mutable {
      const RowRange range{10 * i, 10 * i + 10};
      const TurnRows rows{.tensor = Tensor(range), .payload = Bytes(ids_, range), .row_start = range.begin};
      const auto turn =
          writer->Add({.tokens = absl::MakeConstSpan(tokens_).first(range.end + 1)}, &rows, "", std::move(place));
      EXPECT_OK(turn);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(appender_->Flush(kLong));
  ExpectStored("s", {ids_.begin(), ids_.begin() + 100});
}

TEST_F(TrajectoryWriterTest, ATurnThatIsBrokenOffIsRepeated) {
  std::atomic<bool> hang{true};
  service_.OnAppend([&](const AppendRequest&) { return hang ? Do::kReject : Do::kAnswer; });
  const auto writer = New("s");
  ASSERT_OK(Add(*writer, {0, 99}, 100).status());
  tokens_[40] ^= 1;
  Cancellation call;
  std::thread waiting([&] {
    const CallScope scope(&call);
    EXPECT_EQ(Add(*writer, {40, 99}, 100).status().code(), absl::StatusCode::kCancelled);
  });
  call.Cancel();
  waiting.join();
  hang = false;
  ASSERT_OK(Add(*writer, {40, 99}, 100).status());
  ASSERT_OK(appender_->Flush(kLong));
  ExpectStored("s", {ids_.begin(), ids_.begin() + 99});
}

}  // namespace
}  // namespace routing_replay::client
