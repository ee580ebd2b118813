// One connection to a stand-in server, which sends the bytes that the test defines.
#include "server/store/redis/client/redis_connection.h"

#include <unistd.h>

#include <thread>

#include "tests/support/redis/scripted_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::ScriptedServer;
using routing_replay::testing::SingleServer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Clock::Time In(std::chrono::milliseconds time) { return Clock::Real().Now() + time; }
Clock::Time Soon() { return In(std::chrono::seconds(10)); }

absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const ScriptedServer& server, RedisEndpoint endpoint = {}) {
  return RedisConnection::Open(server.address(), endpoint, nullptr, Soon());
}

absl::StatusOr<std::vector<RedisReply>> Ask(RedisConnection& connection, int commands, Clock::Time deadline = Soon()) {
  std::vector<RedisCommand> pings;
  for (int i = 0; i < commands; ++i) pings.push_back(RedisCommand({"PING", absl::StrCat(i)}));
  return connection.Exchange(pings, deadline);
}

std::string PasswordFile(const std::string& password) {
  const std::string path = ::testing::TempDir() + "/routing-replay-connection-password." + std::to_string(getpid());
  FILE* file = std::fopen(path.c_str(), "w");
  std::fputs(password.c_str(), file);
  std::fclose(file);
  return path;
}

TEST(RedisConnectionTest, RepliesMatchTheirCommands) {
  ScriptedServer server(SingleServer(
      [](const auto& command) -> ScriptedServer::Answer { return {absl::StrCat(":", command[1], "\r\n")}; }));
  ASSERT_OK_AND_ASSIGN(auto connection, Open(server));
  ASSERT_OK_AND_ASSIGN(const auto replies, Ask(*connection, 1000));
  ASSERT_EQ(replies.size(), 1000);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(replies[i].integer, i);
  EXPECT_TRUE(connection->CheckIdle());
}

TEST(RedisConnectionTest, LogsInWithUserAndPassword) {
  ScriptedServer server(SingleServer({}));
  ASSERT_OK(Open(server, {.user = "me", .password_file = PasswordFile("secret\n")}));
  ASSERT_OK(Open(server, {.password_file = PasswordFile("secret")}));
  ASSERT_OK(Open(server));
  EXPECT_THAT(server.commands(),
              ElementsAre(ElementsAre("HELLO", "2", "AUTH", "me", "secret", "SETNAME", "routing-replay"),
                          ElementsAre("HELLO", "2", "AUTH", "default", "secret", "SETNAME", "routing-replay"),
                          ElementsAre("HELLO", "2", "SETNAME", "routing-replay")));
}

TEST(RedisConnectionTest, LoginErrorsKeepTheSecret) {
  const std::pair<const char*, absl::StatusCode> cases[] = {
      {"-ERR unknown command 'HELLO', with args beginning with: '2' 'AUTH' 'default' 'secret'\r\n",
       absl::StatusCode::kFailedPrecondition},
      {"-WRONGPASS secret\r\n", absl::StatusCode::kPermissionDenied},
      {"-NOAUTH secret\r\n", absl::StatusCode::kPermissionDenied},
      {"-LOADING secret\r\n", absl::StatusCode::kUnavailable},
      {"-NOPROTO secret\r\n", absl::StatusCode::kFailedPrecondition},
      {"-ERR max number of clients reached secret\r\n", absl::StatusCode::kUnavailable},
      {"-DENIED Redis is running in protected mode secret\r\n", absl::StatusCode::kUnavailable},
      {"-ERR something else secret\r\n", absl::StatusCode::kUnavailable},
      {"?secret\r\n", absl::StatusCode::kDataLoss},
  };
  for (const auto& [answer, code] : cases) {
    ScriptedServer server([answer = answer](const auto&) -> ScriptedServer::Answer { return {answer}; });
    const auto connection = Open(server, {.password_file = PasswordFile("secret")});
    EXPECT_EQ(connection.status().code(), code) << connection.status();
    EXPECT_THAT(std::string(connection.status().message()), Not(HasSubstr("secret")));
  }
}

TEST(RedisConnectionTest, DeadAfterBrokenReply) {
  ScriptedServer server(SingleServer(
      [](const auto& command) -> ScriptedServer::Answer { return {command[1] == "2" ? "!\r\n" : ":1\r\n"}; }));
  ASSERT_OK_AND_ASSIGN(auto connection, Open(server));
  EXPECT_TRUE(absl::IsDataLoss(Ask(*connection, 5).status()));
  EXPECT_FALSE(connection->usable());
  EXPECT_TRUE(absl::IsUnavailable(Ask(*connection, 1).status()));
}

TEST(RedisConnectionTest, DeadAfterReplyTooMany) {
  ScriptedServer server(SingleServer([](const auto&) -> ScriptedServer::Answer { return {":1\r\n:2\r\n"}; }));
  ASSERT_OK_AND_ASSIGN(auto connection, Open(server));
  // Nobody asked for the second reply. The client notices it either during this exchange or when it checks the
  // connection before the next one.
  const Clock::Time end = Clock::Real().Now() + std::chrono::seconds(60);
  if (Ask(*connection, 1).ok()) {
    while (connection->CheckIdle() && Clock::Real().Now() < end) std::this_thread::yield();
  }
  EXPECT_FALSE(connection->usable());
}

TEST(RedisConnectionTest, DeadAfterHangUpAndAfterADeadline) {
  ScriptedServer server(SingleServer([](const auto& command) -> ScriptedServer::Answer {
    if (command[1] == "3") return {"$5\r\nab", true};
    return {":1\r\n"};
  }));
  ASSERT_OK_AND_ASSIGN(auto connection, Open(server));
  EXPECT_TRUE(absl::IsUnavailable(Ask(*connection, 5).status()));
  EXPECT_FALSE(connection->usable());

  server.SetHandler(SingleServer([](const auto&) -> ScriptedServer::Answer { return {"$5\r\nab"}; }));
  ASSERT_OK_AND_ASSIGN(connection, Open(server));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Ask(*connection, 1, In(std::chrono::milliseconds(20))).status()));
  EXPECT_FALSE(connection->usable());
}

TEST(RedisConnectionTest, LastAnswerBeforeHangingUpCounts) {
  ScriptedServer server(SingleServer([](const auto&) -> ScriptedServer::Answer { return {":1\r\n", true}; }));
  ASSERT_OK_AND_ASSIGN(auto connection, Open(server));
  EXPECT_OK(Ask(*connection, 1));
}

TEST(RedisConnectionTest, NobodyThere) {
  uint16_t port;
  {
    ScriptedServer server({});
    port = server.address().port;
  }
  const auto connection = RedisConnection::Open({"127.0.0.1", port}, {}, nullptr, Soon());
  EXPECT_TRUE(absl::IsUnavailable(connection.status()));
  EXPECT_THAT(std::string(connection.status().message()), HasSubstr(absl::StrCat("127.0.0.1:", port)));
}

}  // namespace
}  // namespace routing_replay::server
