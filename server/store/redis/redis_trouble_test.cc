#include "server/store/redis/redis_trouble.h"

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>
#include <utility>

#include "tests/support/status_matchers.h"

namespace routing_replay {
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

// Ids of samples are for those who ask for them.
TEST(RedisTroubleTest, ALossIsToldOnceAndItsSamplesAtTheLevelDebug) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  const auto logger = std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_st>(log));
  spdlog::set_default_logger(logger);
  for (const auto level : {spdlog::level::info, spdlog::level::debug}) {
    logger->set_level(level);
    log.str("");
    RedisTrouble trouble;
    trouble.TellLoss("run", "first", 40, 70);
    trouble.TellLoss("run", "second", 0, 7);
    EXPECT_THAT(log.str(), HasSubstr("Redis came back with less"));
    EXPECT_EQ(log.str().find("came back"), log.str().rfind("came back"));
    for (const char* named :
         {"loss: sample first of run run: 40 of 70 rows", "loss: sample second of run run: 0 of 7"}) {
      EXPECT_EQ(log.str().find(named) != std::string::npos, level == spdlog::level::debug) << log.str();
    }
  }
  spdlog::set_default_logger(before);
}

}  // namespace
}  // namespace routing_replay
