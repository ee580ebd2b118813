#include "client/appender/append_session.h"

#include <deque>
#include <random>

#include "absl/strings/str_cat.h"
#include "client/testing/model_server.h"
#include "routing_replay/wire/error_detail.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using std::chrono::milliseconds;
using testing::Fails;
using testing::MakeTokens;
using testing::ModelIds;
using testing::ModelRows;
using testing::ModelServer;

constexpr int32_t kBlockRows = 32;
constexpr int64_t kPieceBytes = int64_t{2} << 20;

Backoff Fixed(milliseconds wait) { return Backoff({.initial = wait, .maximum = wait, .factor = 1, .jitter = 0}); }

AppendPlan MakePlan(const std::string& sample, const std::vector<uint8_t>& ids, const std::vector<uint32_t>& tokens,
                    RowRange rows, bool seal = false) {
  AppendOptions options{.sample = sample, .row_start = rows.begin, .token_ids = tokens};
  if (seal) options.seal_num_tokens = rows.end + 1;
  auto plan = PlanBlocks(options, ModelRows(ids, rows, {}, kBlockRows), kBlockRows, kPieceBytes);
  EXPECT_OK(plan);
  return *std::move(plan);
}

std::string BytesOf(const AppendQueue::Message& message) {
  std::string bytes = message.header;
  for (const auto part : message.payload) bytes.append(part.begin(), part.end());
  return bytes;
}

ByteChain Chain(const std::string& bytes) {
  return ByteChain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

class AppendSessionTest : public ::testing::Test {
 protected:
  explicit AppendSessionTest(milliseconds append_timeout = std::chrono::hours(10))
      : session_({.run = "r", .max_queued_bytes = 1000, .append_timeout = append_timeout}, Fixed(milliseconds(10)),
                 Fixed(milliseconds(100))) {}

  AppendSession::Step Next(bool can_write = true) { return session_.Next(clock_.Now(), can_write).step; }
  void Answer(const std::string& sent) {
    auto request = ParseAppendRequest(Chain(sent));
    ASSERT_OK(request);
    AppendResponse response;
    if (request->want_bytes > 0) response.credit = Credit{.granted_bytes = request->want_bytes};
    if (request->append) response.ack = server_.Apply(*request);
    session_.OnMessage(Chain(EncodeAppendResponse(response)), clock_.Now());
  }
  // Adds an append that makes the server end the stream.
  void Fail(AppendPlan plan, const absl::Status& why) {
    session_.Add(std::move(plan), clock_.Now());
    clock_.Advance(milliseconds(100));
    EXPECT_EQ(Next(), AppendSession::Step::kConnect);
    session_.OnStreamEnd(why, clock_.Now());
  }
  void Deliver() {
    std::vector<AppendOutcome> delivered;
    for (auto& one : session_.TakeFinished()) delivered.push_back(std::move(one.outcome));
    session_.OnDelivered(delivered);
    outcomes_.insert(outcomes_.end(), delivered.begin(), delivered.end());
  }

  ManualClock clock_;
  ModelServer server_;
  AppendSession session_;
  std::vector<AppendOutcome> outcomes_;
};

using Step = AppendSession::Step;

TEST_F(AppendSessionTest, ConnectsOnlyForSomethingToSend) {
  EXPECT_EQ(Next(), Step::kWait);
  session_.Add(MakePlan("a", {1, 2}, {}, {0, 2}, true), clock_.Now());
  EXPECT_EQ(session_.newest_open(), 1u);
  EXPECT_EQ(Next(), Step::kConnect);
  EXPECT_EQ(Next(/*can_write=*/false), Step::kWait);
  for (AppendSession::Action action; (action = session_.Next(clock_.Now(), true)).step == Step::kSend;) {
    Answer(BytesOf(action.message));
  }
  EXPECT_FALSE(session_.Settled(1));
  Deliver();
  EXPECT_TRUE(session_.Settled(1));
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_TRUE(outcomes_[0].sealed);
  EXPECT_OK(session_.TakeError());
  session_.OnStreamEnd(absl::UnavailableError("gone"), clock_.Now());
  EXPECT_EQ(Next(), Step::kWait);
}

TEST_F(AppendSessionTest, ASmallAppendThatNothingWaitsBeforeIsForItsCaller) {
  const auto add = [&](size_t bytes) {
    session_.Add(MakePlan("a", std::vector<uint8_t>(bytes, 1), {}, {0, static_cast<int64_t>(bytes)}), clock_.Now());
    return session_.NextIfSmall(clock_.Now()).has_value();
  };
  EXPECT_FALSE(add(1));  // There is no stream.
  EXPECT_EQ(Next(), Step::kConnect);
  EXPECT_FALSE(add(1));  // The first one still waits.
  while (Next() == Step::kSend) {
  }
  EXPECT_TRUE(add(1));
  EXPECT_EQ(Next(), Step::kWait);
  EXPECT_FALSE(add(40'000));
}

TEST_F(AppendSessionTest, WhatGetsNoCreditForGoodFails) {
  const std::vector<uint8_t> ids(40'000, 1);  // More than may be sent without credit.
  for (const char* sample : {"a", "b"}) session_.Add(MakePlan(sample, ids, {}, {0, 40'000}), clock_.Now());
  EXPECT_EQ(Next(), Step::kConnect);
  const absl::Status gone = MakeError(absl::StatusCode::kNotFound, "no run", {.reason = Reason::kNoRun});
  for (size_t failed = 1; failed <= 2; ++failed) {
    ASSERT_EQ(Next(), Step::kSend);  // At once, as credit for the others would be rejected, too.
    const AppendResponse response{.credit = Credit{.granted_bytes = 0, .rejection = gone}};
    session_.OnMessage(Chain(EncodeAppendResponse(response)), clock_.Now());
    Deliver();
    ASSERT_EQ(outcomes_.size(), failed);
    EXPECT_THAT(outcomes_.back().status, Fails(absl::StatusCode::kNotFound, Reason::kNoRun));
  }
  EXPECT_EQ(Next(), Step::kWait);
}

TEST_F(AppendSessionTest, AnErrorNamesAllThatFailed) {
  const absl::Status gap = MakeError(absl::StatusCode::kFailedPrecondition, "a gap", {.reason = Reason::kGap});
  for (int i = 0; i < 120; ++i) {
    Fail(MakePlan(absl::StrCat("s", i % 60), {1, 2}, {}, {0, 2}), gap);
  }
  Deliver();
  AppendFailures failures;
  const absl::Status error = session_.TakeError(&failures);
  EXPECT_THAT(error, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGap));
  EXPECT_EQ(GetErrorDetail(error)->sample, "s0");
  EXPECT_EQ(error.message(),
            "sample s0: a gap; 120 appends failed, of samples s0, s1, s10, s11, s12, s13, s14, s15, s16, s17 and 50 "
            "more");
  EXPECT_EQ(failures.appends, 120);
  EXPECT_EQ(failures.failed_samples.size(), 60u);
  ASSERT_EQ(failures.failures.size(), 100u);
  EXPECT_EQ(failures.failures[99].sample, "s39");
  EXPECT_EQ(failures.failures[99].status, gap);
  EXPECT_OK(session_.TakeError(&failures));
  EXPECT_EQ(failures.appends, 0);
  EXPECT_TRUE(failures.failed_samples.empty());
}

TEST_F(AppendSessionTest, WaitsBetweenConnectionsAndSendsAgain) {
  session_.Add(MakePlan("a", {1, 2}, {5, 6}, {0, 2}), clock_.Now());
  EXPECT_EQ(Next(), Step::kConnect);
  ASSERT_EQ(Next(), Step::kSend);
  session_.OnStreamEnd(absl::UnavailableError("gone"), clock_.Now());
  EXPECT_EQ(Next(), Step::kWait);
  clock_.Advance(milliseconds(100));
  EXPECT_EQ(Next(), Step::kConnect);
  EXPECT_EQ(session_.metrics().reconnects, 1);
  EXPECT_EQ(Next(), Step::kSend);
  EXPECT_EQ(session_.metrics().resent_bytes, 2);
}

TEST_F(AppendSessionTest, EndsAStreamThatCannotBeRead) {
  session_.Add(MakePlan("a", {1, 2}, {}, {0, 2}), clock_.Now());
  EXPECT_EQ(Next(), Step::kConnect);
  session_.OnMessage(Chain("\xff\xff\xff"), clock_.Now());
  EXPECT_EQ(Next(), Step::kCancel);
  EXPECT_EQ(Next(), Step::kWait);
  session_.OnStreamEnd(absl::CancelledError(), clock_.Now());
  clock_.Advance(milliseconds(100));
  EXPECT_EQ(Next(), Step::kConnect);
}

TEST_F(AppendSessionTest, RoomAndDroppedAppends) {
  EXPECT_TRUE(session_.HasRoom(1 << 30));  // One append always fits, however large it is.
  const std::vector<uint8_t> ids(600, 1);
  const std::vector<uint32_t> tokens = MakeTokens(600, 1);
  session_.Add(MakePlan("a", ids, {}, {0, 600}), clock_.Now());
  EXPECT_FALSE(session_.HasRoom(600));
  EXPECT_THAT(session_.NoRoom("b"), Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  session_.Add(MakePlan("b", ids, tokens, {0, 600}, true), clock_.Now(), /*dropped=*/true);
  EXPECT_EQ(Next(), Step::kConnect);
  for (AppendSession::Action action; (action = session_.Next(clock_.Now(), true)).step == Step::kSend;) {
    Answer(BytesOf(action.message));
  }
  Deliver();
  EXPECT_OK(session_.TakeError());
  EXPECT_EQ(session_.metrics().dropped_appends, 1);
  EXPECT_EQ(session_.metrics().dropped_rows, 600);
  EXPECT_EQ(server_.samples["b"].num_tokens, 601);
  EXPECT_EQ(server_.samples["b"].rows[3].id, std::nullopt);
  EXPECT_EQ(server_.samples["b"].rows[3].token, tokens[3]);
}

TEST_F(AppendSessionTest, WhatALaterAttemptHasReplacedIsNoFailure) {
  const std::vector<uint8_t> ids(8, 1);
  const absl::Status old = MakeError(absl::StatusCode::kFailedPrecondition, "old",
                                     {.reason = Reason::kOldRevision, .field = "append.restart_nonce"});
  const auto add = [&](std::optional<int64_t> attempt) {
    auto plan = PlanBlocks({.sample = "a", .attempt = attempt}, ModelRows(ids, {0, 8}, {}, kBlockRows), kBlockRows,
                           kPieceBytes);
    ASSERT_OK(plan);
    Fail(*std::move(plan), old);
  };
  add(3);
  EXPECT_FALSE(session_.Settled(SampleAttempt{"a", 3}));
  EXPECT_TRUE(session_.Settled(SampleAttempt{"a", {}}));
  Deliver();
  EXPECT_TRUE(session_.Settled(SampleAttempt{"a", 3}));
  EXPECT_OK(session_.TakeError());
  EXPECT_EQ(session_.metrics().stale_appends, 1);
  EXPECT_EQ(session_.metrics().failed, 1);
  EXPECT_TRUE(session_.TellTrouble({"a", 3}));
  add({});
  Deliver();
  EXPECT_THAT(session_.TakeError(), Fails(absl::StatusCode::kFailedPrecondition, Reason::kOldRevision));
  EXPECT_EQ(session_.metrics().stale_appends, 1);
}

class ImpatientSessionTest : public AppendSessionTest {
 protected:
  ImpatientSessionTest() : AppendSessionTest(milliseconds(500)) {}
};

// If no append is open, Next returns a time at which an append that is added now has just expired. So the waiting
// thread need not be woken for an append that its caller sends directly.
TEST_F(ImpatientSessionTest, WaitsNoLongerThanAnAppendMayTake) {
  const Clock::Time until = session_.Next(clock_.Now(), true).until;
  session_.Add(MakePlan("a", {1}, {}, {0, 1}), clock_.Now());
  clock_.Advance(until - clock_.Now());
  Next();
  EXPECT_EQ(session_.TakeFinished().size(), 1u);
}

TEST_F(ImpatientSessionTest, EndsAStreamThatDoesNotAnswer) {
  session_.Add(MakePlan("a", {1, 2}, {}, {0, 2}), clock_.Now());
  EXPECT_EQ(Next(), Step::kConnect);
  EXPECT_EQ(Next(), Step::kSend);
  clock_.Advance(milliseconds(500));
  EXPECT_EQ(Next(), Step::kCancel);
  Deliver();
  ASSERT_EQ(outcomes_.size(), 1u);
  EXPECT_EQ(outcomes_[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(session_.TakeError().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_OK(session_.TakeError());
}

// Every appended row arrives once, whatever fails.
TEST_F(AppendSessionTest, SurvivesWhateverBreaks) {
  std::mt19937_64 random(7);
  std::map<std::string, std::vector<uint8_t>> ids;
  for (int s = 0; s < 4; ++s) {
    const std::string name = absl::StrCat("s", s);
    ids[name] = ModelIds(random, 700);
    const std::vector<uint32_t> tokens = s % 2 == 0 ? MakeTokens(700, s) : std::vector<uint32_t>();
    for (int64_t begin = 0; begin < 700; begin += 100) {
      const std::vector<uint32_t> known =
          tokens.empty() ? tokens : std::vector(tokens.begin(), tokens.begin() + begin + 100);
      session_.Add(MakePlan(name, ids[name], known, {begin, begin + 100}, begin == 600), clock_.Now());
    }
  }
  std::deque<std::string> on_the_way;
  for (int step = 0; !session_.Settled(28); ++step) {
    ASSERT_LT(step, 100000) << "no progress";
    AppendSession::Action action = session_.Next(clock_.Now(), random() % 2 == 0);
    const bool breaks = random() % 5 == 0;
    if (action.step == Step::kSend) {
      on_the_way.push_back(BytesOf(action.message));
    } else if (action.step == Step::kWait && on_the_way.empty()) {
      clock_.Advance(std::min<Clock::Duration>(action.until - clock_.Now(), milliseconds(200)));
    }
    while (!on_the_way.empty() && random() % 2 == 0) {
      const std::string bytes = on_the_way.front();
      on_the_way.pop_front();
      if (breaks) {
        const auto request = ParseAppendRequest(Chain(bytes));
        if (random() % 2 == 0 && request->append) server_.Apply(*request);
        on_the_way.clear();
        session_.OnStreamEnd(absl::UnavailableError("down"), clock_.Now());
        break;
      }
      Answer(bytes);
    }
    Deliver();
  }
  EXPECT_OK(session_.TakeError());
  EXPECT_GT(session_.metrics().reconnects, 2);
  for (const auto& [name, expected] : ids) {
    ASSERT_EQ(server_.samples[name].rows.size(), expected.size());
    for (size_t row = 0; row < expected.size(); ++row) EXPECT_EQ(server_.samples[name].rows[row].id, expected[row]);
    EXPECT_EQ(server_.samples[name].num_tokens, 701);
  }
}

}  // namespace
}  // namespace routing_replay::client
