// Redirections, servers out of service and lost connections, simulated by stand-in servers.
#include <algorithm>
#include <atomic>

#include "server/store/redis/client/redis_cluster.h"
#include "tests/support/redis/scripted_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::Bulk;
using routing_replay::testing::ClusterOf;
using routing_replay::testing::Fails;
using routing_replay::testing::ScriptedServer;
using routing_replay::testing::SingleServer;
using Answer = ScriptedServer::Answer;
using Command = ScriptedServer::Command;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Clock::Time In(std::chrono::milliseconds time) { return Clock::Real().Now() + time; }
Clock::Time Soon() { return In(std::chrono::seconds(20)); }

std::unique_ptr<RedisCluster> Connect(const RedisEndpoint& endpoint, RedisClusterOptions options = {}) {
  auto cluster = RedisCluster::Connect(endpoint, options, Soon());
  EXPECT_OK(cluster);
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

RedisResult ExecuteOne(RedisCluster& cluster, const RedisRequest& request, Clock::Time deadline) {
  return std::move(cluster.Execute({&request, 1}, deadline).front());
}

RedisRequest Get(const std::string& key) { return {.command = RedisCommand({"GET", key}), .key = key}; }

// Two masters, a and b, with half of the slots each. Each answers every command with its own letter, so a test sees
// which of them executed it.
class TwoServers : public ::testing::Test {
 protected:
  TwoServers() : a_({}), b_({}) {
    a_.SetHandler(Cluster([](const Command&) -> Answer { return {"+a\r\n"}; }));
    b_.SetHandler(Cluster([](const Command&) -> Answer { return {"+b\r\n"}; }));
  }
  ScriptedServer::Handler Cluster(ScriptedServer::Handler handler) {
    return ClusterOf({a_.address(), b_.address()}, std::move(handler));
  }
  std::string Error(const char* kind, const std::string& key, const ScriptedServer& server) {
    return absl::StrCat("-", kind, " ", RedisSlotOf(key), " ", server.address().ToString(), "\r\n");
  }
  static int64_t GetsOf(const ScriptedServer& server) {
    const std::vector<Command> commands = server.commands();
    return std::count_if(commands.begin(), commands.end(), IsGet);
  }
  static bool IsGet(const Command& command) { return command[0] == "GET"; }

  const std::string key_of_a_ = "bar";  // Slot 5061.
  const std::string key_of_b_ = "foo";  // Slot 12182.
  ScriptedServer a_, b_;
};

TEST_F(TwoServers, CommandsGoToTheServersOfTheirKeys) {
  const auto cluster = Connect(a_.endpoint());
  EXPECT_TRUE(cluster->clustered());
  std::vector<RedisRequest> requests;
  for (int i = 0; i < 100; ++i) requests.push_back(Get(absl::StrCat("key", i)));
  const auto results = cluster->Execute(requests, Soon());
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK(results[i].reply);
    EXPECT_EQ(results[i].reply->text, RedisSlotOf(requests[i].key) < kRedisSlots / 2 ? "a" : "b");
  }
  EXPECT_EQ(a_.connections() + b_.connections(), 2);
}

TEST_F(TwoServers, MovedIsFollowedAndRemembered) {
  const auto cluster = Connect(a_.endpoint());
  const auto moved = [&](const Command&) -> Answer { return {Error("MOVED", key_of_a_, b_)}; };
  a_.SetHandler(ClusterOf({b_.address(), b_.address()}, moved));
  b_.SetHandler(ClusterOf({b_.address(), b_.address()}, [](const Command&) -> Answer { return {"+b\r\n"}; }));
  for (int i = 0; i < 3; ++i) {
    const RedisResult result = ExecuteOne(*cluster, Get(key_of_a_), Soon());
    ASSERT_OK(result.reply);
    EXPECT_EQ(result.reply->text, "b");
  }
  EXPECT_EQ(GetsOf(a_), 1);
}

TEST_F(TwoServers, MovedIsBelievedRatherThanAnOldMap) {
  a_.SetHandler(Cluster([&](const Command&) -> Answer { return {Error("MOVED", key_of_a_, b_)}; }));
  const auto cluster = Connect(a_.endpoint());
  EXPECT_EQ(ExecuteOne(*cluster, Get(key_of_a_), Soon()).reply->text, "b");
  EXPECT_EQ(GetsOf(a_), 1);
}

TEST_F(TwoServers, AskIsForThisOnce) {
  std::atomic<int> asked{0};
  a_.SetHandler(Cluster([&](const Command&) -> Answer {
    if (asked++ == 0) return {Error("ASK", key_of_a_, b_)};
    return {"+a\r\n"};
  }));
  const auto cluster = Connect(a_.endpoint());
  EXPECT_EQ(ExecuteOne(*cluster, Get(key_of_a_), Soon()).reply->text, "b");
  EXPECT_EQ(ExecuteOne(*cluster, Get(key_of_a_), Soon()).reply->text, "a");
  const auto seen = b_.commands();
  ASSERT_EQ(seen.size(), 3);
  EXPECT_THAT(seen[1], ElementsAre("ASKING"));
  EXPECT_THAT(seen[2], ElementsAre("GET", key_of_a_));
}

// SET a, SET b, GET key.
RedisRequest Sequence(const std::string& key) {
  RedisRequest request = Get(key);
  for (const char* value : {"a", "b"}) request.before.push_back(RedisCommand({"SET", key, value}));
  return request;
}

std::vector<std::string> Words(const std::vector<Command>& commands, size_t from) {
  std::vector<std::string> words;
  for (size_t i = from; i < commands.size(); ++i) words.push_back(commands[i].back());
  return words;
}

TEST_F(TwoServers, CommandsOfOneRequestStayTogetherAndInOrder) {
  const auto cluster = Connect(a_.endpoint());
  const size_t before = a_.commands().size();
  a_.SetHandler(Cluster([](const Command& command) -> Answer { return {absl::StrCat("+", command[0], "\r\n")}; }));
  const std::vector<RedisRequest> requests = {Sequence(key_of_a_), Get(key_of_b_), Sequence(key_of_a_)};
  const auto results = cluster->Execute(requests, Soon());
  EXPECT_EQ(results[0].reply->text, "GET");
  EXPECT_EQ(results[2].reply->text, "GET");
  EXPECT_FALSE(results[0].repeated);
  EXPECT_THAT(Words(a_.commands(), before), ElementsAre("a", "b", key_of_a_, "a", "b", key_of_a_));
}

// The slot is being moved from server a to server b. Server a still executes the first SET of the request, but
// redirects the second one to server b (ASK). The client must repeat the whole request until server a executes all of
// it. If it sent a SET to server b, the key would exist on both servers, and the slot could not be moved.
TEST_F(TwoServers, CommandsOfOneRequestWaitForASlotOnItsWay) {
  const auto cluster = Connect(a_.endpoint());
  std::atomic<int> asked{0};
  a_.SetHandler(Cluster([&](const Command& command) -> Answer {
    return {command.back() == "b" && asked++ < 3 ? Error("ASK", key_of_a_, b_) : "+a\r\n"};
  }));
  const RedisResult result = ExecuteOne(*cluster, Sequence(key_of_a_), Soon());
  EXPECT_EQ(result.reply->text, "a");
  EXPECT_TRUE(result.repeated);
  for (const Command& command : b_.commands()) EXPECT_NE(command[0], "SET");
}

TEST_F(TwoServers, TheFirstErrorOfARequestIsItsResult) {
  const auto cluster = Connect(a_.endpoint());
  a_.SetHandler(Cluster([&](const Command& command) -> Answer {
    return {command.back() == "a" ? "-OOM command not allowed\r\n" : "+a\r\n"};
  }));
  EXPECT_THAT(ExecuteOne(*cluster, Sequence(key_of_a_), Soon()).reply,
              Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
}

TEST_F(TwoServers, ARequestWhoseAnswerWasLostIsRepeated) {
  const auto cluster = Connect(a_.endpoint());
  for (const char* cut : {"b", key_of_a_.c_str()}) {
    std::atomic<int> asked{0};
    a_.SetHandler(Cluster([&](const Command& command) -> Answer {
      if (command.back() == cut && asked++ == 0) return {"", true};
      return {"+a\r\n"};
    }));
    const RedisResult result = ExecuteOne(*cluster, Sequence(key_of_a_), Soon());
    EXPECT_OK(result.reply);
    EXPECT_TRUE(result.repeated);
  }
}

TEST_F(TwoServers, PassingErrorsAreRetried) {
  for (const char* error : {"TRYAGAIN x", "CLUSTERDOWN x", "LOADING x", "READONLY x", "MASTERDOWN x"}) {
    std::atomic<int> asked{0};
    a_.SetHandler(Cluster([&](const Command&) -> Answer {
      if (asked++ < 3) return {absl::StrCat("-", error, "\r\n")};
      return {"+a\r\n"};
    }));
    const auto cluster = Connect(a_.endpoint());
    const RedisResult result = ExecuteOne(*cluster, Get(key_of_a_), Soon());
    EXPECT_OK(result.reply) << error;
    EXPECT_FALSE(result.repeated);  // An error reply says that it was not executed.
  }
}

TEST_F(TwoServers, RetriesEndAtTheDeadline) {
  a_.SetHandler(Cluster([&](const Command&) -> Answer { return {"-CLUSTERDOWN Hash slot not served\r\n"}; }));
  const auto cluster = Connect(a_.endpoint());
  const std::vector<RedisRequest> requests = {Get(key_of_a_), Get(key_of_b_)};
  const auto results = cluster->Execute(requests, In(std::chrono::milliseconds(60)));
  EXPECT_TRUE(absl::IsUnavailable(results[0].reply.status()));
  EXPECT_THAT(std::string(results[0].reply.status().message()), HasSubstr("CLUSTERDOWN"));
  EXPECT_OK(results[1].reply);
}

TEST_F(TwoServers, SlotThatNobodyServes) {
  a_.SetHandler([&](const Command& command) -> Answer {
    if (command[0] == "HELLO") return {"*0\r\n"};
    if (command[0] != "CLUSTER") return {"+a\r\n"};
    return {absl::StrCat("*1\r\n*3\r\n:0\r\n:5061\r\n*2\r\n", Bulk("127.0.0.1"), ":", a_.address().port, "\r\n")};
  });
  const auto cluster = Connect(a_.endpoint());
  EXPECT_OK(ExecuteOne(*cluster, Get(key_of_a_), Soon()).reply);
  const RedisResult result = ExecuteOne(*cluster, Get(key_of_b_), In(std::chrono::milliseconds(50)));
  EXPECT_TRUE(absl::IsUnavailable(result.reply.status()));
  EXPECT_THAT(std::string(result.reply.status().message()), HasSubstr("no server has slot"));
}

TEST_F(TwoServers, TwoServersThatSendASlotToAndFro) {
  a_.SetHandler(Cluster([&](const Command&) -> Answer { return {Error("MOVED", key_of_a_, b_)}; }));
  b_.SetHandler(Cluster([&](const Command&) -> Answer { return {Error("MOVED", key_of_a_, a_)}; }));
  const auto cluster = Connect(a_.endpoint());
  const RedisResult result = ExecuteOne(*cluster, Get(key_of_a_), In(std::chrono::milliseconds(200)));
  EXPECT_TRUE(absl::IsUnavailable(result.reply.status()));
}

TEST_F(TwoServers, LostConnectionIsTriedAgain) {
  std::atomic<int> asked{0};
  a_.SetHandler(Cluster([&](const Command&) -> Answer {
    if (asked++ == 0) return {"$5\r\nab", true};
    return {"+a\r\n"};
  }));
  const auto cluster = Connect(a_.endpoint());
  const RedisResult result = ExecuteOne(*cluster, Get(key_of_a_), Soon());
  EXPECT_OK(result.reply);
  EXPECT_TRUE(result.repeated);
}

TEST_F(TwoServers, AnsweredCommandsOfALostPipelineKeepTheirAnswers) {
  std::atomic<int> deleted{0};
  a_.SetHandler(Cluster([&](const Command& command) -> Answer {
    if (command[0] == "DEL" && deleted++ == 0) return {"", true};
    return {"+a\r\n"};
  }));
  const auto cluster = Connect(a_.endpoint());
  const std::string key = key_of_a_;
  const std::vector<RedisRequest> requests = {Get(key), {RedisCommand({"DEL", key}), key}};
  const auto results = cluster->Execute(requests, Soon());
  EXPECT_OK(results[0].reply);
  EXPECT_OK(results[1].reply);
  EXPECT_TRUE(results[1].repeated);
  EXPECT_EQ(GetsOf(a_), 1);
}

TEST_F(TwoServers, ServerThatIsGoneDoesNotHoldUpTheOther) {
  auto gone = std::make_unique<ScriptedServer>(ScriptedServer::Handler());
  const RedisAddress dead = gone->address();
  gone.reset();
  b_.SetHandler(ClusterOf({dead, b_.address()}, [](const Command&) -> Answer { return {"+b\r\n"}; }));
  const auto cluster = Connect(b_.endpoint());
  const std::vector<RedisRequest> requests = {Get(key_of_a_), Get(key_of_b_)};
  const auto results = cluster->Execute(requests, In(std::chrono::milliseconds(100)));
  EXPECT_TRUE(absl::IsUnavailable(results[0].reply.status()));
  EXPECT_OK(results[1].reply);
}

TEST_F(TwoServers, SilentServerIsTakenForLost) {
  std::atomic<int> asked{0};
  a_.SetHandler(Cluster([&](const Command&) -> Answer {
    if (asked++ == 0) return {"$5\r\n"};
    return {"+a\r\n"};
  }));
  const auto cluster = Connect(a_.endpoint(), {.response_timeout = std::chrono::milliseconds(50)});
  EXPECT_OK(ExecuteOne(*cluster, Get(key_of_a_), Soon()).reply);
  EXPECT_EQ(asked, 2);
}

TEST(RedisExecutionTest, OtherErrorsAreTheCallers) {
  std::string error;
  ScriptedServer server(SingleServer([&](const Command&) -> Answer { return {error}; }));
  const auto cluster = Connect(server.endpoint());
  error = "-OOM command not allowed\r\n";
  EXPECT_THAT(ExecuteOne(*cluster, Get("k"), Soon()).reply,
              Fails(absl::StatusCode::kResourceExhausted, Reason::kOverBudget));
  error = "-NOPERM no\r\n";
  EXPECT_TRUE(absl::IsPermissionDenied(ExecuteOne(*cluster, Get("k"), Soon()).reply.status()));
  error = "-WRONGTYPE no\r\n";
  EXPECT_TRUE(absl::IsFailedPrecondition(ExecuteOne(*cluster, Get("k"), Soon()).reply.status()));
}

TEST(RedisExecutionTest, PassedDeadlineSendsNothing) {
  ScriptedServer server(SingleServer([](const Command&) -> Answer { return {"+x\r\n"}; }));
  const auto cluster = Connect(server.endpoint());
  EXPECT_TRUE(absl::IsDeadlineExceeded(ExecuteOne(*cluster, Get("k"), Clock::Real().Now()).reply.status()));
  EXPECT_EQ(server.commands().size(), 2u);
}

TEST(RedisExecutionTest, ConnectionsAreReused) {
  ScriptedServer server(SingleServer([](const Command&) -> Answer { return {"+x\r\n"}; }));
  const auto cluster = Connect(server.endpoint());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) EXPECT_OK(ExecuteOne(*cluster, Get("k"), Soon()).reply);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(server.connections(), 8);
}

TEST_F(TwoServers, ConnectionsToWhoHasLeftAreClosed) {
  const auto cluster = Connect(a_.endpoint());
  ASSERT_OK(ExecuteOne(*cluster, Get(key_of_a_), Soon()).reply);
  // First, the map of slots names only server b, so server a has left. Then it names only server a again.
  for (ScriptedServer* master : {&b_, &a_}) {
    const auto map = [&, master](const Command& command) -> Answer {
      if (command[0] != "GET") return {"+x\r\n"};
      return {Error("MOVED", command[1], *master)};
    };
    const auto serves = [](const Command&) -> Answer { return {"+x\r\n"}; };
    a_.SetHandler(
        ClusterOf({master->address(), master->address()}, master == &a_ ? ScriptedServer::Handler(serves) : map));
    b_.SetHandler(
        ClusterOf({master->address(), master->address()}, master == &b_ ? ScriptedServer::Handler(serves) : map));
    EXPECT_OK(ExecuteOne(*cluster, Get(key_of_a_), Soon()).reply);
  }
  EXPECT_GE(a_.connections(), 2);
}

TEST(RedisExecutionTest, IdleConnectionThatTheServerClosedIsNotUsed) {
  std::atomic<bool> close{true};
  ScriptedServer server(SingleServer([&](const Command&) -> Answer { return {"+x\r\n", close}; }));
  const auto cluster = Connect(server.endpoint());
  for (int i = 0; i < 20; ++i) {
    const RedisResult result = ExecuteOne(*cluster, Get("k"), Soon());
    EXPECT_OK(result.reply);
    EXPECT_FALSE(result.repeated);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(RedisExecutionTest, SeveralServersThatAreNoCluster) {
  ScriptedServer a(SingleServer({})), b(SingleServer({}));
  RedisEndpoint endpoint = a.endpoint();
  endpoint.seeds.push_back(b.address());
  EXPECT_TRUE(absl::IsFailedPrecondition(RedisCluster::Connect(endpoint, {}, Soon()).status()));
}

TEST(RedisExecutionTest, AServerThatIsLoadingIsUnavailable) {
  std::atomic<int> asked{0};
  ScriptedServer server([&](const Command& command) -> Answer {
    if (command[0] == "HELLO" && asked++ == 0) return {"-LOADING Redis is loading\r\n"};
    return SingleServer({})(command);
  });
  const absl::Status loading = RedisCluster::Connect(server.endpoint(), {}, Soon()).status();
  EXPECT_TRUE(absl::IsUnavailable(loading)) << loading;
  EXPECT_OK(RedisCluster::Connect(server.endpoint(), {}, Soon()));
  server.SetHandler([](const Command&) -> Answer { return {"HTTP/1.1 400 Bad Request\r\n", true}; });
  const absl::Status other = RedisCluster::Connect(server.endpoint(), {}, Soon()).status();
  EXPECT_TRUE(absl::IsUnavailable(other)) << other;
}

}  // namespace
}  // namespace routing_replay::server
