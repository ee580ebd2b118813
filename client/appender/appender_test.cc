#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "client/call/cancellation.h"
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

TEST_F(AppenderTest, EveryRowArrivesOnceAndOutcomesKeepTheirOrder) {
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
          return Do::kReject;
        default:
          return Do::kAnswer;
      }
    });
    std::map<std::string, std::vector<int64_t>> ends, outcomes;
    std::map<std::string, std::vector<uint8_t>> samples;
    AppenderOptions options;
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

TEST_F(AppenderTest, AnAppendWhoseAnswerIsLostIsSentAgain) {
  std::mt19937_64 random(3);
  const std::vector<uint8_t> ids = ModelIds(random, 200);
  const std::vector<uint32_t> tokens = MakeTokens(201, 3);
  std::atomic<int> appends{0};
  service_.OnAppend(
      [&](const AppendRequest& request) { return request.append && ++appends == 1 ? Do::kLoseAnswer : Do::kAnswer; });
  const auto appender = run_->NewAppender();
  ASSERT_OK(Append(*appender, "s", ids, {0, 200}, {.token_ids = tokens, .seal_num_tokens = 201}));
  ASSERT_OK(appender->Flush(kLong));
  EXPECT_EQ(appends, 2);
  EXPECT_EQ(appender->metrics().resent_bytes, 200);
  ExpectStored("s", ids);
}

TEST_F(AppenderTest, RejectionsReachFlushAndTheRestGoesOn) {
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

TEST_F(AppenderTest, BadPayloadsAreRejectedAtOnce) {
  const std::vector<uint8_t> ids(100);
  const auto appender = run_->NewAppender();
  EXPECT_EQ(appender->Append({.sample = "s"}, Tensor({0, 100}), Bytes(ids, {0, 99})).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Append(*appender, "a b", ids, {0, 100}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(appender->metrics().appends, 0);
}

TEST_F(AppenderTest, AFullServerIsAnErrorWhenTheTimeIsUp) {
  service_.OnAppend([](const AppendRequest&) { return Do::kReject; });
  const std::vector<uint8_t> ids(100);
  const auto appender = run_->NewAppender({.append_timeout = milliseconds(100)});
  ASSERT_OK(Append(*appender, "s", ids, {0, 100}));
  EXPECT_THAT(appender->Flush(kLong), Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_GT(appender->metrics().credit_rejections, 0);
  // The server has room again. The pause between two tries may be longer than the 100 ms that an append may take, so
  // more than one append may be needed until one succeeds.
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
  // An append without payload needs no credit, so it is sent at once, and then waits for the ack of a server that
  // hangs.
  const NewAppend append{.options = {.sample = "s", .unrecorded = {{0, 10}}}};
  QueuedAppends queued;
  ASSERT_OK(appender->AppendMany({&append, 1}, queued));
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
}  // Destroyed while an append is in flight.

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

TEST_F(AppenderTest, SeveralInOneCallInTheirOrder) {
  std::mt19937_64 random(7);
  const std::vector<uint8_t> ids = ModelIds(random, 100);
  const auto appender = run_->NewAppender();
  std::vector<NewAppend> appends;
  for (int64_t begin = 0; begin < 100; begin += 10) {
    appends.push_back(
        {{.sample = "s", .row_start = begin}, Tensor({begin, begin + 10}), Bytes(ids, {begin, begin + 10})});
  }
  appends.push_back({{.sample = "s", .row_start = 100, .unrecorded = {{100, 105}}, .seal = true}, {}, {}});
  QueuedAppends queued;
  ASSERT_OK(appender->AppendMany(appends, queued));
  EXPECT_EQ(queued.sequences, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(queued.dropped, 0u);
  ASSERT_OK(appender->Flush(kLong));
  const ModelSample sample = service_.Sample("s");
  ASSERT_EQ(sample.rows.size(), 105u);
  EXPECT_EQ(sample.rows[99].id, ids[99]);
  EXPECT_EQ(sample.rows[100].id, std::nullopt);
  EXPECT_EQ(sample.num_tokens, 106);

  // If one append is invalid, the appends before it are queued all the same.
  appends[3].options.row_start = -1;
  queued = {};
  EXPECT_EQ(appender->AppendMany(appends, queued).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(queued.sequences, (std::vector<uint64_t>{12, 13, 14}));
}

TEST_F(AppenderTest, WhatThereIsNoRoomForIsMarkedWhereItMayBeDropped) {
  std::atomic<bool> hang{true};
  service_.OnAppend([&](const AppendRequest&) { return hang ? Do::kLoseMessage : Do::kAnswer; });
  const std::vector<uint8_t> ids(10000);
  const auto appender =
      run_->NewAppender({.max_queued_bytes = 15000, .queue_timeout = milliseconds(50), .drop_when_full = true});
  ASSERT_OK(Append(*appender, "s", ids, {0, 10000}));
  const std::vector<NewAppend> more{{{.sample = "t"}, Tensor({0, 10000}), Bytes(ids, {0, 10000})},
                                    {{.sample = "u"}, Tensor({0, 100}), Bytes(ids, {0, 100})}};
  QueuedAppends queued;
  ASSERT_OK(appender->AppendMany(more, queued, /*may_wait=*/false));
  EXPECT_TRUE(queued.sequences.empty());  // A later append must not overtake.
  ASSERT_OK(appender->AppendMany(more, queued));
  EXPECT_EQ(queued.sequences, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(queued.dropped, 1u);
  EXPECT_GT(appender->metrics().queued_bytes, 10000);
  EXPECT_EQ(appender->metrics().open_appends, 3);
  hang = false;
  ASSERT_OK(appender->Flush(kLong));
  EXPECT_EQ(appender->metrics().dropped_rows, 10000);
  EXPECT_EQ(service_.Sample("t").rows.size(), 10000u);
  EXPECT_EQ(service_.Sample("t").rows[0].id, std::nullopt);
  ASSERT_OK_AND_ASSIGN(const auto trouble, appender->Settle("t", {}, kLong));
  ASSERT_TRUE(trouble);
  EXPECT_TRUE(trouble->marked);
  EXPECT_THAT(trouble->error, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  ASSERT_OK_AND_ASSIGN(const auto none, appender->Settle("u", {}, kLong));
  EXPECT_FALSE(none);
  // A queue timeout of 0 leaves nothing to wait for: the append that finds no room is dropped at once.
  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  const auto hasty =
      run_->NewAppender({.max_queued_bytes = 15000, .queue_timeout = milliseconds(0), .drop_when_full = true});
  ASSERT_OK(Append(*hasty, "v", ids, {0, 10000}));
  queued = {};
  ASSERT_OK(hasty->AppendMany(more, queued, /*may_wait=*/false));
  EXPECT_EQ(queued.dropped, 1u);
}

TEST_F(AppenderTest, ASampleIsSettledApart) {
  const std::vector<uint8_t> ids(100);
  service_.OnAppend([](const AppendRequest& request) { return request.append ? Do::kHang : Do::kAnswer; });
  const auto appender = run_->NewAppender();
  ASSERT_OK(Append(*appender, "s", ids, {0, 100}));
  EXPECT_EQ(appender->Settle("s", {}, milliseconds(20)).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_OK(appender->Settle("t", {}, milliseconds(0)));
  EXPECT_EQ(appender->Flush(milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AppenderTest, NothingMoreGoesThroughOneThatIsClosed) {
  const std::vector<uint8_t> ids(100);
  const auto appender = run_->NewAppender();
  ASSERT_OK(Append(*appender, "gap", ids, {50, 100}));
  AppendFailures failures;
  EXPECT_THAT(appender->Close(kLong, &failures), Fails(absl::StatusCode::kFailedPrecondition, Reason::kGap));
  EXPECT_EQ(failures.failed_samples, (std::set<std::string>{"gap"}));
  EXPECT_EQ(Append(*appender, "s", ids, {0, 100}).code(), absl::StatusCode::kCancelled);
  EXPECT_OK(appender->Close(kLong));
  EXPECT_OK(appender->Flush(kLong));
  EXPECT_EQ(appender->metrics().failed, 1);

  // A Close that takes too long abandons the open appends, and threads that wait for them get an error.
  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  const auto left = run_->NewAppender();
  ASSERT_OK(Append(*left, "s", ids, {0, 100}));
  absl::Status flushed;
  std::thread waiting([&] { flushed = left->Flush(kLong); });
  EXPECT_EQ(left->Close(milliseconds(20)).code(), absl::StatusCode::kDeadlineExceeded);
  waiting.join();
  EXPECT_EQ(flushed.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(left->Settle("s", {}, kLong).status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(left->metrics().open_appends, 1);
}

TEST_F(AppenderTest, WaitsEndWithTheirCall) {
  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  const std::vector<uint8_t> ids(10000);
  const auto appender = run_->NewAppender({.max_queued_bytes = 15000, .drop_when_full = true});
  ASSERT_OK(Append(*appender, "s", ids, {0, 10000}));
  const std::vector<std::function<absl::Status()>> waits = {
      [&] { return appender->Flush(kLong); },
      [&] { return appender->Settle("s", {}, kLong).status(); },
      [&] {
        return Append(*appender, "t", ids, {0, 10000});
      },
      [&] { return appender->Close(kLong); },
  };
  for (const auto& wait : waits) {
    client::Cancellation call;
    std::thread waiting([&] {
      const client::CallScope scope(&call);
      EXPECT_EQ(wait().code(), absl::StatusCode::kCancelled);
    });
    call.Cancel();
    waiting.join();
  }
  EXPECT_EQ(appender->metrics().appends, 1);
  ASSERT_OK(Append(*appender, "u", ids, {0, 100}));  // The appender is not closed.
  client::Cancellation late(Clock::Real().Now() + milliseconds(20));
  const client::CallScope scope(&late);
  EXPECT_EQ(appender->Flush(kLong).code(), absl::StatusCode::kDeadlineExceeded);
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
  const NewAppend append{.options = {.sample = "s", .unrecorded = {{0, 5}}}};
  QueuedAppends queued;
  ASSERT_OK(appender->AppendMany({&append, 1}, queued));
  EXPECT_EQ(appender->Flush(kLong).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace routing_replay::testing
