// Subscriptions at one real server: counting, endings and beginnings.
#include "server/store/redis/client/redis_subscriber.h"

#include <csignal>

#include "proto/wire/mutex.h"
#include "tests/support/redis/redis_process.h"
#include "tests/support/redis/scripted_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::NoRedisReason;
using routing_replay::testing::RedisProcess;
using routing_replay::testing::ScriptedServer;
using routing_replay::testing::SingleServer;
using ::testing::ElementsAre;

Clock::Time Soon() { return Clock::Real().Now() + std::chrono::seconds(20); }

// "channel" for an event without a message, "channel=message" for another.
class Ear {
 public:
  RedisSubscriber::Callback callback() {
    return [this](const RedisEvent& event) {
      const MutexLock lock(mutex_);
      events_.push_back(event.message ? absl::StrCat(event.channel, "=", *event.message) : event.channel);
      heard_.NotifyAll();
    };
  }
  // The events so far, once there are `count`.
  std::vector<std::string> Await(size_t count) {
    const MutexLock lock(mutex_);
    const Clock::Time deadline = Soon();
    while (events_.size() < count && Clock::Real().Now() < deadline) heard_.WaitUntil(mutex_, deadline);
    return events_;
  }

 private:
  Mutex mutex_;
  CondVar heard_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
};

class RedisSubscriberTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = NoRedisReason(); !reason.empty()) GTEST_SKIP() << reason;
    ASSERT_OK_AND_ASSIGN(server_, RedisProcess::Start());
    ASSERT_OK_AND_ASSIGN(redis_, RedisCluster::Connect(server_->endpoint(), Quick(), Soon()));
  }
  static RedisClusterOptions Quick() { return {.response_timeout = std::chrono::milliseconds(200)}; }
  void Publish(const std::string& channel, const std::string& message) {
    EXPECT_OK(
        redis_->ExecuteOne({.command = RedisCommand({"SPUBLISH", channel, message}), .key = channel}, Soon()).reply);
  }

  std::unique_ptr<RedisProcess> server_;
  std::unique_ptr<RedisCluster> redis_;
  Ear ear_;
};

TEST_F(RedisSubscriberTest, EachSubscribeIsAnswered) {
  const auto subscriber = RedisSubscriber::Start(*redis_, ear_.callback());
  subscriber->Subscribe("a");
  EXPECT_THAT(ear_.Await(1), ElementsAre("a"));
  subscriber->Subscribe("a");
  EXPECT_THAT(ear_.Await(2), ElementsAre("a", "a"));
  Publish("a", "1");
  Publish("b", "2");
  EXPECT_THAT(ear_.Await(3), ElementsAre("a", "a", "a=1"));
  subscriber->Unsubscribe("a");
  Publish("a", "3");
  EXPECT_THAT(ear_.Await(4), ElementsAre("a", "a", "a=1", "a=3"));
  subscriber->Unsubscribe("a");
  subscriber->Subscribe("b");
  EXPECT_THAT(ear_.Await(5), ElementsAre("a", "a", "a=1", "a=3", "b"));
  Publish("a", "4");
  Publish("b", "5");
  EXPECT_THAT(ear_.Await(6), ElementsAre("a", "a", "a=1", "a=3", "b", "b=5"));
}

TEST_F(RedisSubscriberTest, QuickChangesEndInTheLastState) {
  const auto subscriber = RedisSubscriber::Start(*redis_, ear_.callback());
  for (int i = 0; i < 100; ++i) {
    subscriber->Subscribe("a");
    subscriber->Unsubscribe("a");
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  subscriber->Subscribe("last");
  while (ear_.Await(1).back() != "last") std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Publish("a", "1");
  Publish("last", "2");
  std::vector<std::string> events;
  while ((events = ear_.Await(2)).back() != "last=2") std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(std::count(events.begin(), events.end(), "a=1"), 0);
}

TEST_F(RedisSubscriberTest, LostConnectionIsMadeAnewAndSaysSo) {
  const auto subscriber = RedisSubscriber::Start(*redis_, ear_.callback());
  subscriber->Subscribe("a");
  EXPECT_THAT(ear_.Await(1), ElementsAre("a"));
  ASSERT_OK(server_->Restart());
  EXPECT_THAT(ear_.Await(2), ElementsAre("a", "a"));
  Publish("a", "1");
  EXPECT_THAT(ear_.Await(3), ElementsAre("a", "a", "a=1"));
  EXPECT_OK(subscriber->status());
}

TEST_F(RedisSubscriberTest, SilentServerIsTakenForLost) {
  const auto subscriber = RedisSubscriber::Start(*redis_, ear_.callback());
  subscriber->Subscribe("a");
  EXPECT_THAT(ear_.Await(1), ElementsAre("a"));
  // Silence alone is no loss: PINGs are answered.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_THAT(ear_.Await(1), ElementsAre("a"));
  server_->Pause();
  while (subscriber->status().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server_->Signal(SIGCONT);
  EXPECT_GE(ear_.Await(2).size(), 2u);
}

TEST_F(RedisSubscriberTest, CallbackMaySubscribe) {
  RedisSubscriber* self = nullptr;
  Mutex mutex;
  const auto subscriber = RedisSubscriber::Start(*redis_, [&](const RedisEvent& event) {
    {
      const MutexLock lock(mutex);
      if (event.channel == "a") self->Subscribe("b");
    }
    ear_.callback()(event);
  });
  {
    const MutexLock lock(mutex);
    self = subscriber.get();
    subscriber->Subscribe("a");
  }
  EXPECT_THAT(ear_.Await(2), ElementsAre("a", "b"));
}

TEST(RedisSubscriberWithoutServerTest, OldServerIsNamed) {
  ScriptedServer server(
      SingleServer([](const auto&) -> ScriptedServer::Answer { return {"-ERR unknown command 'SSUBSCRIBE'\r\n"}; }));
  auto redis = RedisCluster::Connect(server.endpoint(), {}, Soon());
  ASSERT_OK(redis);
  Ear ear;
  const auto subscriber = RedisSubscriber::Start(**redis, ear.callback());
  subscriber->Subscribe("a");
  while (subscriber->status().ok()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(absl::IsFailedPrecondition(subscriber->status())) << subscriber->status();
}

TEST(RedisSubscriberWithoutServerTest, EndsWhileAServerDoesNotAnswer) {
  std::atomic<bool> silent{false};
  ScriptedServer server([&](const auto& command) -> ScriptedServer::Answer {
    if (silent) return {};
    return SingleServer({})(command);
  });
  auto redis = RedisCluster::Connect(server.endpoint(), {.connect_timeout = std::chrono::hours(1)}, Soon());
  ASSERT_OK(redis);
  silent = true;
  const size_t before = server.commands().size();
  Ear ear;
  auto subscriber = RedisSubscriber::Start(**redis, ear.callback());
  subscriber->Subscribe("a");
  while (server.commands().size() == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  subscriber.reset();
}

}  // namespace
}  // namespace routing_replay::server
