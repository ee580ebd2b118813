#include <atomic>
#include <map>
#include <random>

#include "client/testing/client_fixture.h"

namespace routing_replay::testing {
namespace {

using std::chrono::milliseconds;

class AppenderTest : public ClientTest {
 protected:
  absl::Status Append(Appender& appender, const std::string& sample, const std::vector<uint8_t>& ids, RowRange range,
                      AppendOptions options = {}) {
    options.sample = sample;
    options.row_start = range.begin;
    return appender.Append(options, Tensor(range), Bytes(ids, range));
  }
};

// Encoded blocks or tensors as they are.
class AppenderBreakTest : public AppenderTest, public ::testing::WithParamInterface<bool> {};

TEST_P(AppenderBreakTest, EveryRowArrivesOnceAndOutcomesKeepTheirOrder) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 6; ++round) {
    std::mt19937_64 faults(round);
    service_.OnAppend([&faults](const AppendRequest&) {
      switch (faults() % 12) {
        case 0:
          return Do::kLoseMessage;
        case 1:
          return Do::kLoseAnswer;
        case 2:
          return Do::kRefuse;
        default:
          return Do::kAnswer;
      }
    });
    std::map<std::string, std::vector<int64_t>> ends, outcomes;
    std::map<std::string, std::vector<uint8_t>> samples;
    AppenderOptions options{.encode_blocks = GetParam()};
    options.on_outcome = [&](const AppendOutcome& outcome) {
      EXPECT_OK(outcome.status);
      EXPECT_EQ(outcome.conflicting_rows, 0);
      outcomes[outcome.sample].push_back(outcome.committed_rows);
    };
    const auto appender = run_->NewAppender(options);
    for (int s = 0; s < 5; ++s) {
      const std::string name = absl::StrCat("r", round, "/s", s);
      const auto rows = 1 + static_cast<int64_t>(random() % 500);
      const std::vector<uint8_t>& ids = samples[name] = ModelIds(random, rows);
      const std::vector<uint32_t> tokens = MakeTokens(rows + 1, random());
      for (int64_t begin = 0; begin < rows;) {
        const auto end = std::min<int64_t>(rows, begin + 1 + static_cast<int64_t>(random() % 150));
        AppendOptions append;
        if (s % 2 == 0) append.token_ids = tokens;
        if (end == rows) append.seal_num_tokens = rows + 1;
        ASSERT_OK(Append(*appender, name, ids, {begin, end}, append));
        ends[name].push_back(end);
        begin = end;
      }
    }
    ASSERT_OK(appender->Flush(kLong));
    for (const auto& [name, ids] : samples) {
      ExpectStored(name, ids);
      EXPECT_EQ(service_.Sample(name).num_tokens, static_cast<int64_t>(ids.size()) + 1);
      EXPECT_TRUE(std::is_sorted(outcomes[name].begin(), outcomes[name].end()));
      EXPECT_EQ(outcomes[name].size(), ends[name].size());
    }
    EXPECT_EQ(appender->metrics().acknowledged, appender->metrics().appends);
    EXPECT_EQ(appender->metrics().failed, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(BothForms, AppenderBreakTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "EncodedBlocks" : "Tensor"; });

TEST_F(AppenderTest, LargeAppendsGoInSeveralMessagesAndHaveOneOutcome) {
  std::mt19937_64 random(2);
  const std::vector<uint8_t> ids = ModelIds(random, 4'000'000);
  std::atomic<int> outcomes{0}, messages{0};
  service_.OnAppend([&](const AppendRequest& request) {
    messages += request.append ? 1 : 0;
    return Do::kAnswer;
  });
  AppenderOptions options;
  options.on_outcome = [&](const AppendOutcome& outcome) {
    ++outcomes;
    EXPECT_EQ(outcome.committed_rows, 4'000'000);
    EXPECT_TRUE(outcome.sealed);
  };
  const auto appender = run_->NewAppender(options);
  ASSERT_OK(Append(*appender, "s", ids, {0, 4'000'000}, {.seal_num_tokens = 4'000'001}));
  ASSERT_OK(appender->Flush(kLong));
  EXPECT_EQ(outcomes, 1);
  EXPECT_EQ(messages, 2);
  ExpectStored("s", ids);
}

TEST_F(AppenderTest, WhatIsProvenToBeThereIsNotSentAgain) {
  std::mt19937_64 random(3);
  const std::vector<uint8_t> ids = ModelIds(random, 200);
  const std::vector<uint32_t> tokens = MakeTokens(201, 3);
  std::atomic<int> appends{0};
  service_.OnAppend(
      [&](const AppendRequest& request) { return request.append && ++appends == 1 ? Do::kLoseAnswer : Do::kAnswer; });
  const auto appender = run_->NewAppender();
  ASSERT_OK(Append(*appender, "s", ids, {0, 200}, {.token_ids = tokens, .seal_num_tokens = 201}));
  ASSERT_OK(appender->Flush(kLong));
  EXPECT_EQ(appends, 1);
  EXPECT_EQ(appender->metrics().resent_bytes, 0);
  ExpectStored("s", ids);

  // Without tokens there is no proof.
  appends = 0;
  ASSERT_OK(Append(*appender, "t", ids, {0, 200}));
  ASSERT_OK(appender->Flush(kLong));
  EXPECT_EQ(appends, 2);
  EXPECT_EQ(appender->metrics().resent_bytes, 200);
}

TEST_F(AppenderTest, RefusalsReachFlushAndTheRestGoesOn) {
  std::mt19937_64 random(4);
  const std::vector<uint8_t> ids = ModelIds(random, 100);
  const auto appender = run_->NewAppender();
  ASSERT_OK(Append(*appender, "gap", ids, {50, 100}));
  ASSERT_OK(Append(*appender, "good", ids, {0, 100}));
  EXPECT_THAT(appender->Flush(kLong), Fails(absl::StatusCode::kFailedPrecondition, Reason::kGap));
  EXPECT_OK(appender->Flush(kLong)) << "an error is told once";
  ExpectStored("good", ids);
  EXPECT_EQ(appender->metrics().failed, 1);
}

TEST_F(AppenderTest, BadPayloadsAreRefusedAtOnce) {
  const std::vector<uint8_t> ids(100);
  const auto appender = run_->NewAppender();
  EXPECT_EQ(appender->Append({.sample = "s"}, Tensor({0, 100}), Bytes(ids, {0, 99})).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Append(*appender, "a b", ids, {0, 100}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(appender->metrics().appends, 0);
}

TEST_F(AppenderTest, AFullServerIsAnErrorWhenTheTimeIsUp) {
  service_.OnAppend([](const AppendRequest&) { return Do::kRefuse; });
  const std::vector<uint8_t> ids(100);
  const auto appender = run_->NewAppender({.append_timeout = milliseconds(100)});
  ASSERT_OK(Append(*appender, "s", ids, {0, 100}));
  EXPECT_THAT(appender->Flush(kLong), Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_GT(appender->metrics().credit_refusals, 0);
  // It is not given up for good, however long the pause before it asks again is against the time of one append.
  service_.OnAppend({});
  absl::Status status;
  const auto give_up = std::chrono::steady_clock::now() + kLong;
  do {
    ASSERT_OK(Append(*appender, "s", ids, {0, 100}));
    status = appender->Flush(kLong);
  } while (!status.ok() && std::chrono::steady_clock::now() < give_up);
  EXPECT_OK(status);
}

TEST_F(AppenderTest, AServerThatHangsIsLeft) {
  std::atomic<bool> hang{true};
  service_.OnAppend([&](const AppendRequest&) { return hang ? Do::kHang : Do::kAnswer; });
  const std::vector<uint8_t> ids(100);
  const auto appender = run_->NewAppender({.append_timeout = milliseconds(100)});
  // An append without payload is sent without credit, and so is in flight.
  ASSERT_OK(appender->AppendUnrecorded({.sample = "s"}, 10));
  EXPECT_EQ(appender->Flush(kLong).code(), absl::StatusCode::kDeadlineExceeded);
  hang = false;
  ASSERT_OK(Append(*appender, "t", ids, {0, 100}));
  EXPECT_OK(appender->Flush(kLong));
}

TEST_F(AppenderTest, TheQueueIsBounded) {
  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  const std::vector<uint8_t> ids(10000);
  const auto appender = run_->NewAppender({.max_queued_bytes = 15000, .queue_timeout = milliseconds(50)});
  ASSERT_OK(Append(*appender, "s", ids, {0, 10000}));
  EXPECT_THAT(Append(*appender, "s", ids, {0, 10000}),
              Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_EQ(appender->metrics().appends, 1);
  EXPECT_EQ(appender->Flush(milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
}  // Destroyed with an append on its way.

TEST_F(AppenderTest, OneAppendLargerThanTheQueueIsTaken) {
  const std::vector<uint8_t> ids(10000);
  const auto appender = run_->NewAppender({.max_queued_bytes = 10});
  ASSERT_OK(Append(*appender, "s", ids, {0, 10000}));
  ASSERT_OK(Append(*appender, "s", ids, {0, 10000}));
  EXPECT_OK(appender->Flush(kLong));
}

TEST_F(AppenderTest, MayBeDestroyedAtAnyTime) {
  std::mt19937_64 random(6);
  const std::vector<uint8_t> ids(1000);
  for (int round = 0; round < 40; ++round) {
    const Do action = round % 4 == 0 ? Do::kHang : round % 4 == 1 ? Do::kLoseMessage : Do::kAnswer;
    service_.OnAppend([action](const AppendRequest&) { return action; });
    const auto appender = run_->NewAppender();
    for (uint64_t n = random() % 20; n > 0; --n) {
      ASSERT_OK(Append(*appender, absl::StrCat("s", n), ids, {0, 1000}));
    }
    if (random() % 2 == 0) appender->Flush(milliseconds(random() % 5)).IgnoreError();
  }
}

TEST(DeadAppenderTest, WithoutAServerAppendsFailInTheirTime) {
  std::string endpoint;
  std::unique_ptr<Client> client;
  std::shared_ptr<routing_replay::Run> run;
  {
    FakeService service;
    client = *Client::Connect({.endpoint = service.endpoint()});
    run = *client->OpenRun("run", ModelGeometry());
  }
  const auto appender = run->NewAppender({.append_timeout = milliseconds(200)});
  ASSERT_OK(appender->AppendUnrecorded({.sample = "s"}, 5));
  EXPECT_EQ(appender->Flush(kLong).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace routing_replay::testing
