#include "server/store/redis/redis_trouble.h"

#include <gmock/gmock.h>

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

}  // namespace
}  // namespace routing_replay
