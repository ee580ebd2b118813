#include "client/commit.h"

#include <atomic>
#include <thread>

#include "client/call/cancellation.h"
#include "client/testing/client_fixture.h"

namespace routing_replay::testing {
namespace {

using client::Commit;
using client::CommitOutcome;
using client::CommitRequest;
using client::CommitStatus;

class CommitTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    for (int i = 0; i < 2; ++i) appenders_.emplace_back(run_->NewAppender({.append_timeout = kLong}));
  }
  void Append(const std::string& sample, RowRange range, AppendOptions options = {}, int appender = 0) {
    options.sample = sample;
    options.row_start = range.begin;
    ASSERT_OK(appenders_[appender]->Append(options, Tensor(range), Bytes(ids_, range)));
  }
  CommitOutcome Committed(CommitRequest request, std::chrono::milliseconds timeout = kLong) {
    auto outcome = Commit(*run_, appenders_, std::move(request), timeout);
    EXPECT_OK(outcome);
    return outcome.ok() ? *outcome : CommitOutcome{};
  }
  static void Expect(const CommitOutcome& outcome, CommitStatus status, int64_t rows, std::optional<int64_t> tokens,
                     Reason reason = Reason::kUnspecified) {
    EXPECT_EQ(CommitStatusName(outcome.status), CommitStatusName(status));
    EXPECT_EQ(outcome.committed_rows, rows);
    EXPECT_EQ(outcome.num_tokens, tokens);
    EXPECT_EQ(GetErrorDetail(outcome.error).value_or(ErrorDetail()).reason, reason) << outcome.error;
    EXPECT_EQ(outcome.error.ok(), status == CommitStatus::kCommitted);
  }

  const std::vector<uint8_t> ids_ = std::vector<uint8_t>(100, 7);
  const std::vector<uint32_t> tokens_ = MakeTokens(101, 1);
  std::vector<std::shared_ptr<Appender>> appenders_;
};

TEST_F(CommitTest, WhatWasAppended) {
  Append("s", {0, 9});
  ASSERT_OK(appenders_[0]->Flush(kLong));
  Append("s", {9, 20}, {}, 1);
  Expect(Committed({.sample = "s"}), CommitStatus::kCommitted, 20, {});
  Expect(Committed({.sample = "s", .num_tokens = 21}), CommitStatus::kCommitted, 20, 21);
  EXPECT_EQ(service_.Sample("s").num_tokens, 21);  // commit has sealed it.
  Expect(Committed({.sample = "s", .num_tokens = 21}), CommitStatus::kCommitted, 20, 21);
  Expect(Committed({.sample = "s", .num_tokens = 22}), CommitStatus::kMissing, 20, 21, Reason::kSealed);
  EXPECT_EQ(service_.Calls("Put"), 1);
  std::atomic<bool> told = false;
  service_.OnAppend([&](const AppendRequest& request) {
    told = request.append->token_check_start.has_value();
    return Do::kAnswer;
  });
  Expect(Committed({.sample = "s", .tokens = std::vector(tokens_.begin(), tokens_.begin() + 21)}),
         CommitStatus::kCommitted, 20, 21);
  EXPECT_TRUE(told);  // The server compares them.
}

TEST_F(CommitTest, ASampleOfWhichNothingCame) {
  Expect(Committed({.sample = "never"}), CommitStatus::kMissing, 0, {}, Reason::kNoSample);
  Expect(Committed({.sample = "never", .num_tokens = 10}), CommitStatus::kMarked, 9, 10, Reason::kNotCommitted);
  EXPECT_EQ(service_.Sample("never").rows.size(), 9u);
  EXPECT_EQ(service_.Sample("never").rows[0].id, std::nullopt);
}

TEST_F(CommitTest, RowsThatTheServerRejected) {
  Append("s", {0, 9}, {.token_ids = absl::MakeConstSpan(tokens_).first(9)});
  Append("s", {20, 30});
  Expect(Committed({.sample = "s"}), CommitStatus::kMissing, 9, {}, Reason::kGap);
  Expect(Committed({.sample = "s", .tokens = std::vector(tokens_.begin(), tokens_.begin() + 31)}),
         CommitStatus::kMarked, 30, 31, Reason::kGap);
  EXPECT_EQ(service_.Sample("s").rows[8].id, 7);
  EXPECT_EQ(service_.Sample("s").rows[9].id, std::nullopt);
  EXPECT_EQ(service_.Sample("s").rows[29].token, tokens_[29]);
  // The result stays until more rows are appended, and flush reports it, too.
  Expect(Committed({.sample = "s"}), CommitStatus::kMarked, 30, 31, Reason::kGap);
  EXPECT_THAT(appenders_[0]->Flush(kLong), Fails(absl::StatusCode::kFailedPrecondition, Reason::kGap));
}

TEST_F(CommitTest, ANameThatIsTaken) {
  ASSERT_OK(run_->Put({.sample = "s", .token_ids = absl::MakeConstSpan(tokens_).first(9)}, Tensor({0, 9}),
                      Bytes(ids_, {0, 9})));
  Append("s", {0, 20}, {.token_ids = absl::MakeConstSpan(tokens_).subspan(1, 20)});
  Expect(Committed({.sample = "s", .num_tokens = 21}), CommitStatus::kMissing, 9, {}, Reason::kOtherTokens);
  EXPECT_EQ(service_.Sample("s").rows.size(), 9u);
}

TEST_F(CommitTest, WhatTakesTooLongOrIsBrokenOff) {
  service_.OnAppend([](const AppendRequest&) { return Do::kHang; });
  Append("slow", {0, 9});
  const CommitOutcome late = Committed({.sample = "slow", .num_tokens = 10}, std::chrono::milliseconds(20));
  EXPECT_EQ(late.status, CommitStatus::kMissing);
  EXPECT_EQ(late.error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(service_.Calls("Stat"), 0);
  client::Cancellation call;
  std::thread waiting([&] {
    const client::CallScope scope(&call);
    EXPECT_EQ(Commit(*run_, appenders_, {.sample = "slow"}, kLong).status().code(), absl::StatusCode::kCancelled);
  });
  call.Cancel();
  waiting.join();
}

TEST_F(CommitTest, RequestsThatAreNone) {
  const auto reject = [&](CommitRequest request, const std::string& field) {
    request.sample = "s";
    const absl::Status status = Commit(*run_, appenders_, std::move(request), kLong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(GetErrorDetail(status).value_or(ErrorDetail()).field, field);
  };
  reject({.num_tokens = 0}, "num_tokens");
  reject({.num_tokens = 9, .tokens = std::vector<uint32_t>(7)}, "tokens");
  reject({.tokens = std::vector<uint32_t>()}, "num_tokens");
  reject({.attempt = -1}, "attempt");
  reject({.attempt = int64_t{1} << 32}, "attempt");
  EXPECT_EQ(Committed({.sample = "no id", .num_tokens = 9}).error.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace routing_replay::testing
