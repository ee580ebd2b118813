#include "client/appender/append_session.h"

#include <deque>
#include <random>

#include "client/testing/model_server.h"
#include "tests/support/random_routes.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::client {
namespace {

using std::chrono::milliseconds;
using testing::Fails;
using testing::MakeTokens;
using testing::ModelIds;
using testing::ModelRows;
using testing::ModelSample;
using testing::ModelServer;

constexpr int32_t kBlockRows = 32;

Backoff TestBackoff() {
  return Backoff({.initial = milliseconds(10), .maximum = milliseconds(80), .factor = 2, .jitter = 0});
}

absl::Status OverBudget(int32_t retry_after_ms) {
  ErrorDetail detail{.reason = Reason::kOverBudget};
  detail.retry_after_ms = retry_after_ms;
  return MakeError(absl::StatusCode::kResourceExhausted, "full", detail);
}

// A message of the queue, parsed as the server parses it, with the bytes to which `request` refers.
struct Received {
  explicit Received(const AppendQueue::Message& message) : bytes(message.header) {
    for (const auto part : message.payload) bytes.append(part.begin(), part.end());
    auto parsed = ParseAppendRequest(ByteChain({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
    EXPECT_OK(parsed);
    request = *std::move(parsed);
  }
  Received(const Received&) = delete;
  std::string bytes;
  AppendRequest request;
};

constexpr int64_t kPieceBytes = int64_t{2} << 20;

AppendPlan MakePlan(const std::string& sample, const std::vector<uint8_t>& ids, const std::vector<uint32_t>& tokens,
                    RowRange rows, int64_t piece_bytes, bool seal) {
  AppendOptions options{.sample = sample, .row_start = rows.begin, .token_ids = tokens};
  if (seal) options.seal_num_tokens = rows.end + 1;
  auto plan = PlanBlocks(options, ModelRows(ids, rows, {}, kBlockRows), kBlockRows, piece_bytes);
  EXPECT_OK(plan);
  return *std::move(plan);
}

// A sequence of connections between a queue and a model server, with every kind of failure.
class Simulation {
 public:
  Simulation(uint64_t seed, bool with_tokens) : random_(seed), with_tokens_(with_tokens) {}

  void AddAppends() {
    for (int s = 0; s < 4; ++s) {
      const std::string name = absl::StrCat("s", s);
      const auto rows = 1 + static_cast<int64_t>(random_() % 600);
      ids_[name] = ModelIds(random_, rows);
      const std::vector<uint32_t> tokens = with_tokens_ ? MakeTokens(rows + 1, random_()) : std::vector<uint32_t>();
      for (int64_t begin = 0; begin < rows;) {
        const auto end = std::min<int64_t>(rows, begin + 1 + static_cast<int64_t>(random_() % 300));
        const uint64_t sequence = queue_.Add(
            MakePlan(name, ids_[name], tokens, {begin, end}, 1 + random_() % 200, end == rows), clock_.Now() + kNever);
        expected_order_[name].push_back(sequence);
        begin = end;
      }
    }
  }

  // Runs to the end; every step is chosen at random.
  void Run() {
    for (int step = 0; !queue_.empty(); ++step) {
      ASSERT_LT(step, 200000) << "no progress";
      switch (random_() % 10) {
        case 0:
          clock_.Advance(milliseconds(random_() % 50));
          break;
        case 1:
          if (random_() % 8 == 0) Break();
          break;
        case 2:
        case 3:
        case 4:
          Send();
          break;
        case 5:
        case 6:
          Serve();
          break;
        default:
          Answer();
      }
      for (const auto& finished : queue_.TakeFinished()) {
        EXPECT_OK(finished.outcome.status);
        EXPECT_EQ(finished.outcome.conflicting_rows, 0);
        order_[finished.outcome.sample].push_back(finished.outcome.sequence);
      }
    }
  }

  void ExpectEveryRowOnce() {
    EXPECT_EQ(order_, expected_order_);
    for (const auto& [name, ids] : ids_) {
      const ModelSample& sample = server_.samples.at(name);
      ASSERT_EQ(sample.rows.size(), ids.size()) << name;
      EXPECT_EQ(sample.num_tokens, static_cast<int64_t>(ids.size()) + 1);
      for (size_t row = 0; row < ids.size(); ++row) ASSERT_EQ(sample.rows[row].id, ids[row]) << name << " row " << row;
    }
    EXPECT_EQ(queue_.queued_bytes(), 0);
    EXPECT_EQ(queue_.metrics().acknowledged, queue_.metrics().appends);
  }

 private:
  static constexpr auto kNever = std::chrono::hours(1000);

  void Send() {
    if (auto message = queue_.NextMessage(clock_.Now())) to_server_.emplace_back(*message);
  }
  // The server takes the next message.
  void Serve() {
    if (to_server_.empty()) return;
    const AppendRequest& request = to_server_.front().request;
    EXPECT_EQ(request.run.empty(), named_) << "the run is named once per stream";
    named_ = true;
    AppendResponse response;
    if (request.append) {
      const bool is_free = static_cast<int64_t>(request.payload.size()) <= kFreePayloadBytes;
      ASSERT_TRUE(is_free || request.payload.size() <= credit_) << "sent without credit";
      credit_ -= std::min<uint64_t>(credit_, request.payload.size());
      if (random_() % 15 == 0) {
        response.ack = AppendAck{.append_id = request.append->append_id,
                                 .sample = request.append->sample,
                                 .error = random_() % 2 ? OverBudget(5) : absl::UnavailableError("draining")};
      } else {
        response.ack = server_.Apply(request);
      }
    }
    if (request.want_bytes > 0) {
      response.credit.emplace();
      if (random_() % 4 == 0) {
        response.credit->rejection = OverBudget(static_cast<int32_t>(random_() % 30));
      } else {
        response.credit->granted_bytes = random_() % (request.want_bytes + 1);
        credit_ += response.credit->granted_bytes;
      }
    }
    to_client_.push_back(std::move(response));
    to_server_.pop_front();
  }
  void Answer() {
    if (to_client_.empty()) return;
    queue_.OnResponse(to_client_.front(), clock_.Now());
    to_client_.pop_front();
  }
  // Messages in flight are lost; the server may have processed some of them.
  void Break() {
    while (random_() % 3 != 0) Serve();
    to_server_.clear();
    to_client_.clear();
    credit_ = 0;
    named_ = false;
    queue_.OnStreamEnd(absl::UnavailableError("broken"));
    queue_.OnStreamStart();
  }

  std::mt19937_64 random_;
  const bool with_tokens_;
  ManualClock clock_;
  AppendQueue queue_{"run", TestBackoff()};
  ModelServer server_;
  std::deque<Received> to_server_;
  std::deque<AppendResponse> to_client_;
  uint64_t credit_ = 0;
  bool named_ = false;
  std::map<std::string, std::vector<uint8_t>> ids_;
  std::map<std::string, std::vector<uint64_t>> expected_order_, order_;
};

TEST(AppendQueueTest, EveryRowArrivesOnceWhateverBreaks) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Simulation simulation(seed, seed % 2 == 0);
    simulation.AddAppends();
    ASSERT_NO_FATAL_FAILURE(simulation.Run()) << "seed " << seed;
    simulation.ExpectEveryRowOnce();
  }
}

class AppendQueueStepTest : public ::testing::Test {
 protected:
  void SetUp() override { queue_.OnStreamStart(); }

  uint64_t Add(const std::string& sample, RowRange rows, milliseconds timeout = milliseconds(1000)) {
    return queue_.Add(MakePlan(sample, ids_, tokens_, rows, kPieceBytes, false), clock_.Now() + timeout);
  }
  // Enough rows that the append needs credit.
  void AddLong(const std::string& sample, RowRange rows) {
    queue_.Add(MakePlan(sample, long_ids_, {}, rows, 10 * kLong, false), clock_.Now() + milliseconds(1000));
  }
  // Returns the next append; grants all the credit that messages before it request.
  std::optional<AppendHeader> NextAppend() {
    while (auto message = queue_.NextMessage(clock_.Now())) {
      const Received received(*message);
      if (received.request.want_bytes > 0) Grant(received.request.want_bytes);
      if (received.request.append) return received.request.append;
    }
    return std::nullopt;
  }
  void Grant(uint64_t bytes) { queue_.OnResponse({.credit = Credit{.granted_bytes = bytes}}, clock_.Now()); }
  void Reject(int32_t retry_after_ms) {
    queue_.OnResponse({.credit = Credit{.rejection = OverBudget(retry_after_ms)}}, clock_.Now());
  }
  void Ack(const AppendHeader& header, const absl::Status& error = absl::OkStatus()) {
    queue_.OnResponse({.ack = AppendAck{.append_id = header.append_id,
                                        .sample = header.sample,
                                        .committed_rows = header.rows.end,
                                        .error = error}},
                      clock_.Now());
  }

  ManualClock clock_;
  std::mt19937_64 random_{5};
  std::vector<uint8_t> ids_ = ModelIds(random_, 1000);
  std::vector<uint32_t> tokens_ = MakeTokens(1001, 5);
  static constexpr int64_t kLong = 40'000;
  std::vector<uint8_t> long_ids_ = ModelIds(random_, 3 * kLong);
  AppendQueue queue_{"run", TestBackoff()};
};

TEST_F(AppendQueueStepTest, SendsWhatIsShortWithoutCreditUnlessItHasAsked) {
  const auto next = [&] {
    const auto message = queue_.NextMessage(clock_.Now());
    return message ? std::optional(Received(*message).request) : std::nullopt;
  };
  Add("a", {0, 100});
  const auto first = next();
  ASSERT_TRUE(first && first->append);
  EXPECT_EQ(first->want_bytes, 0u);
  AddLong("b", {0, kLong});
  Add("c", {0, 100});
  const auto ask = next();
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->want_bytes, kLong + 100);
  EXPECT_FALSE(next());
  Grant(kLong);
  for (const char* sample : {"b", "c"}) {
    const auto append = next();
    ASSERT_TRUE(append && append->append);
    EXPECT_EQ(append->append->sample, sample);
    if (append->want_bytes > 0) Grant(append->want_bytes);
  }
  Ack(*first->append, OverBudget(10));
  EXPECT_EQ(queue_.metrics().credit_rejections, 1);
  EXPECT_FALSE(next());
  clock_.Advance(milliseconds(10));
  const auto again = next();
  ASSERT_TRUE(again && again->append);
  EXPECT_EQ(again->append->sample, "a");
}

TEST_F(AppendQueueStepTest, AsksOnceAndSendsNothingBeforeCredit) {
  AddLong("a", {0, kLong});
  const auto ask = queue_.NextMessage(clock_.Now());
  ASSERT_TRUE(ask);
  const Received received(*ask);
  EXPECT_EQ(received.request.run, "run");
  EXPECT_EQ(received.request.want_bytes, kLong);
  EXPECT_FALSE(received.request.append);
  EXPECT_FALSE(queue_.NextMessage(clock_.Now()));
  Grant(kLong - 1);
  const auto more = queue_.NextMessage(clock_.Now());
  ASSERT_TRUE(more);
  EXPECT_EQ(Received(*more).request.want_bytes, 1u);
  Grant(1);
  const auto append = queue_.NextMessage(clock_.Now());
  ASSERT_TRUE(append);
  EXPECT_EQ(Received(*append).request.payload.size(), kLong);
}

TEST_F(AppendQueueStepTest, AfterARejectionWaitsAsLongAsTheServerSaysAndAsksForLess) {
  AddLong("a", {0, kLong});
  AddLong("a", {kLong, 3 * kLong});
  EXPECT_EQ(Received(*queue_.NextMessage(clock_.Now())).request.want_bytes, 3 * kLong);
  Reject(250);
  EXPECT_EQ(queue_.NextEvent(clock_.Now()), clock_.Now() + milliseconds(250));
  clock_.Advance(milliseconds(249));
  EXPECT_FALSE(queue_.NextMessage(clock_.Now()));
  clock_.Advance(milliseconds(1));
  EXPECT_EQ(Received(*queue_.NextMessage(clock_.Now())).request.want_bytes, kLong);
  EXPECT_EQ(queue_.metrics().credit_rejections, 1);
}

TEST_F(AppendQueueStepTest, RejectedUntilItsDeadlineAnAppendFailsAsOverBudget) {
  AddLong("a", {0, kLong});
  while (!queue_.empty()) {
    if (queue_.NextMessage(clock_.Now())) Reject(100);
    const auto next = queue_.NextEvent(clock_.Now());
    ASSERT_TRUE(next);
    clock_.Advance(*next - clock_.Now());
    EXPECT_FALSE(queue_.Expire(clock_.Now()));
  }
  const auto finished = queue_.TakeFinished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_THAT(finished[0].outcome.status, Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  EXPECT_EQ(queue_.metrics().failed, 1);
}

TEST_F(AppendQueueStepTest, OneRejectedAppendDoesNotStopTheOthers) {
  Add("a", {0, 100});
  Add("b", {0, 100});
  const auto a = NextAppend();
  const auto b = NextAppend();
  ASSERT_TRUE(a && b);
  ErrorDetail detail{.reason = Reason::kGap};
  detail.committed_rows = 17;
  detail.revision = 2;
  Ack(*a, MakeError(absl::StatusCode::kFailedPrecondition, "gap", detail));
  Ack(*b);
  const auto finished = queue_.TakeFinished();
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_THAT(finished[0].outcome.status, Fails(absl::StatusCode::kFailedPrecondition, Reason::kGap));
  EXPECT_EQ(finished[0].outcome.committed_rows, 17);
  EXPECT_EQ(finished[0].outcome.revision, 2);
  EXPECT_OK(finished[1].outcome.status);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(AppendQueueStepTest, WhatFollowsAnOverBudgetAckIsSentAgainToo) {
  Add("a", {0, 100});
  Add("b", {0, 50});
  Add("a", {100, 200});
  const auto first = NextAppend();
  const auto other = NextAppend();
  const auto second = NextAppend();
  ASSERT_TRUE(first && other && second);
  Ack(*first, OverBudget(40));
  Ack(*other);
  Ack(*second, absl::FailedPreconditionError("gap"));  // An ack of the first try, which no longer counts.
  EXPECT_FALSE(queue_.NextMessage(clock_.Now()));
  clock_.Advance(milliseconds(40));
  const auto again = NextAppend();
  const auto again_second = NextAppend();
  ASSERT_TRUE(again && again_second);
  EXPECT_EQ(again->rows, (RowRange{0, 100}));
  EXPECT_EQ(again_second->rows, (RowRange{100, 200}));
  Ack(*again);
  Ack(*again_second);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.metrics().failed, 0);
  EXPECT_EQ(queue_.metrics().resent_bytes, 200);
}

TEST_F(AppendQueueStepTest, AnErrorThatEndsTheStreamHitsTheOldestAppendOnly) {
  Add("a", {0, 100});
  Add("b", {0, 100});
  ASSERT_TRUE(NextAppend());
  ASSERT_TRUE(NextAppend());
  queue_.OnStreamEnd(absl::InvalidArgumentError("unreadable"));
  const auto finished = queue_.TakeFinished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].outcome.sample, "a");
  EXPECT_EQ(finished[0].outcome.status.code(), absl::StatusCode::kInvalidArgument);
  const auto again = NextAppend();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->sample, "b");
}

TEST_F(AppendQueueStepTest, AnAppendWithoutAnAnswerExpiresAndItsLateAckIsIgnored) {
  Add("a", {0, 100});
  const auto append = NextAppend();
  ASSERT_TRUE(append);
  clock_.Advance(milliseconds(1000));
  EXPECT_TRUE(queue_.Expire(clock_.Now()));
  const auto finished = queue_.TakeFinished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].outcome.status.code(), absl::StatusCode::kDeadlineExceeded);
  Ack(*append);
  EXPECT_TRUE(queue_.TakeFinished().empty());
}

TEST_F(AppendQueueStepTest, AnAppendThatExpiresIsNotToldTheRowsOfAnother) {
  Add("a", {0, 100});
  Add("b", {0, 50});
  const auto a = NextAppend();
  ASSERT_TRUE(a);
  ErrorDetail detail{.reason = Reason::kOverBudget, .sample = "a", .row = 7};
  detail.committed_rows = 64;
  detail.retry_after_ms = 1000;
  Ack(*a, MakeError(absl::StatusCode::kResourceExhausted, "full", detail));
  clock_.Advance(milliseconds(1000));
  queue_.Expire(clock_.Now());
  const auto finished = queue_.TakeFinished();
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(GetErrorDetail(finished[1].outcome.status), (ErrorDetail{.reason = Reason::kOverBudget, .sample = "b"}));
}

}  // namespace
}  // namespace routing_replay::client
