#include "server/store/redis/redis_trouble.h"

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>
#include <utility>

#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Answers everything with one error.
class FailingCluster final : public RedisCluster {
 public:
  explicit FailingCluster(absl::Status error) : error_(std::move(error)) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time) override {
    return std::vector<RedisResult>(requests.size(), RedisResult{.reply = error_});
  }
  RedisResult ExecuteAt(const RedisAddress&, const RedisCommand&, Clock::Time) override { return {.reply = error_}; }
  std::vector<RedisAddress> Masters() override { return {}; }
  bool clustered() const override { return false; }
  RedisClusterCounters counters() const override { return {}; }
  void Abandon() override {}
  std::shared_ptr<RedisTopology> topology() override { return nullptr; }

 private:
  const absl::Status error_;
};

absl::Status Shown(const absl::Status& error) {
  RedisTrouble trouble;
  const auto cluster = HideRedisErrors(std::make_shared<FailingCluster>(error), trouble);
  const RedisRequest request{.command = RedisCommand({"GET", "secret"}), .key = "secret"};
  return cluster->ExecuteOne(request, Clock::Real().Now()).reply.status();
}

TEST(RedisTroubleTest, WhatIsNoTroubleOfTheServersGoesThrough) {
  for (const absl::Status& error :
       {absl::UnavailableError("a"), absl::DeadlineExceededError("b"), absl::ResourceExhaustedError("c")}) {
    EXPECT_EQ(Shown(error), error);
  }
}

TEST(RedisTroubleTest, WhatTheClientCannotMendIsNotTold) {
  const absl::Status refused = Shown(absl::PermissionDeniedError("Redis: NOPERM secret"));
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("refuses this server"));
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("secret")));
  EXPECT_TRUE(absl::IsDataLoss(Shown(absl::FailedPreconditionError("WRONGTYPE secret"))));
}

TEST(RedisTroubleTest, ACallThatTheStopInterruptsIsRefusedByNobody) {
  const absl::Status stopped = Shown(absl::CancelledError("interrupted while waiting for Redis"));
  EXPECT_TRUE(absl::IsUnavailable(stopped));
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("this server stops"));
  EXPECT_THAT(std::string(stopped.message()), Not(HasSubstr("refuses")));
}

class RedisLossTest : public ::testing::Test {
 protected:
  RedisLossTest() { spdlog::set_default_logger(logger_); }
  ~RedisLossTest() override { spdlog::set_default_logger(before_); }

  // What is in the log since the last call.
  std::string Log() {
    std::string text = log_.str();
    log_.str("");
    return text;
  }

  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::ostringstream log_;
  const std::shared_ptr<spdlog::logger> logger_ =
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_st>(log_));
  ManualClock clock_;
  RedisTrouble trouble_{clock_};
};

// Ids of samples are for those who ask for them.
TEST_F(RedisLossTest, SamplesAreNamedAtTheLevelDebug) {
  trouble_.NameLoss("run", "first", 40, 70);
  EXPECT_EQ(Log(), "");
  logger_->set_level(spdlog::level::debug);
  trouble_.NameLoss("run", "first", 40, 70);
  EXPECT_THAT(Log(), HasSubstr("loss: sample first of run run: 40 of 70 rows"));
  EXPECT_EQ(trouble_.lost_samples(), 0);
}

TEST_F(RedisLossTest, LossesAreCountedAndNoneIsLeftOutOfTheLog) {
  trouble_.TellLosses();
  EXPECT_EQ(Log(), "");
  trouble_.CountLoss();
  trouble_.TellLosses();
  EXPECT_THAT(Log(), HasSubstr("of 1 samples (1 since"));
  for (int i = 0; i < 3; ++i) trouble_.CountLoss();
  EXPECT_EQ(trouble_.lost_samples(), 4);
  trouble_.TellLosses();
  EXPECT_EQ(Log(), "") << "within a minute";
  clock_.Advance(std::chrono::seconds(61));
  trouble_.TellLosses();
  EXPECT_THAT(Log(), HasSubstr("of 3 samples (4 since"));
  clock_.Advance(std::chrono::seconds(61));
  trouble_.TellLosses();
  EXPECT_EQ(Log(), "");
}

}  // namespace
}  // namespace routing_replay::server
