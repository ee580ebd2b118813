#include "server/store/redis/client/subscriber_link.h"

#include <atomic>

#include "tests/support/redis/scripted_server.h"
#include "tests/support/status_matchers.h"

namespace routing_replay::server {
namespace {

using routing_replay::testing::Bulk;
using routing_replay::testing::ScriptedServer;
using routing_replay::testing::SingleServer;
using Kind = ChannelNews::Kind;
using ::testing::ElementsAre;
using ::testing::FieldsAre;

constexpr std::chrono::hours kNeverQuiet(1);

std::string Push(const std::string& what, const std::string& channel, const std::string& last) {
  return absl::StrCat("*3\r\n", Bulk(what), Bulk(channel), last);
}
std::string Heard(const std::string& channel) { return Push("ssubscribe", channel, ":1\r\n"); }

class SubscriberLinkTest : public ::testing::Test {
 protected:
  // A link to a server that answers each command by `answers`, in turn.
  std::unique_ptr<SubscriberLink> Link(std::vector<std::string> answers) {
    server_ = std::make_unique<ScriptedServer>(
        SingleServer([answers, next = std::make_shared<std::atomic<size_t>>(0)](const auto&) -> ScriptedServer::Answer {
          const size_t i = (*next)++;
          return {i < answers.size() ? answers[i] : ""};
        }));
    auto connection = RedisConnection::Open(server_->address(), {}, nullptr, 1 << 20, {.deadline = Clock::Time::max()});
    EXPECT_OK(connection);
    return std::make_unique<SubscriberLink>(*std::move(connection), Clock::Time());
  }
  // Moves until there are `count` news, or the link is over.
  std::vector<ChannelNews> Await(SubscriberLink& link, size_t count) {
    std::vector<ChannelNews> news;
    while (news.size() < count) {
      status_ = link.Move(Clock::Time(), kNeverQuiet, news);
      if (!status_.ok()) break;
      pollfd socket = link.PollFor();
      if (news.size() < count) poll(&socket, 1, 1000);
    }
    return news;
  }

  std::unique_ptr<ScriptedServer> server_;
  absl::Status status_;
};

TEST_F(SubscriberLinkTest, ErrorsBelongToTheirCommands) {
  const auto link = Link({"-MOVED 1 h:1\r\n", Push("smessage", "x", Bulk("m")) + Heard("b"), "-ERR no\r\n"});
  for (const char* channel : {"a", "b", "c"}) link->Subscribe(channel);
  EXPECT_THAT(Await(*link, 4),
              ElementsAre(FieldsAre(Kind::kRefused, "a", "MOVED 1 h:1"), FieldsAre(Kind::kMessage, "x", "m"),
                          FieldsAre(Kind::kHeard, "b", ""), FieldsAre(Kind::kRefused, "c", "ERR no")));
  EXPECT_THAT(link->channels(), ElementsAre("b"));
}

TEST_F(SubscriberLinkTest, WhatIsNoLongerWantedIsNoNews) {
  const auto link = Link({"-MOVED 1 h:1\r\n", Push("sunsubscribe", "a", ":0\r\n"), Heard("b"),
                          Push("sunsubscribe", "b", ":0\r\n"), Heard("c")});
  link->Subscribe("a");
  link->Unsubscribe("a");
  link->Subscribe("b");
  link->Unsubscribe("b");
  link->Subscribe("c");
  EXPECT_THAT(Await(*link, 1), ElementsAre(FieldsAre(Kind::kHeard, "c", "")));
}

TEST_F(SubscriberLinkTest, ServerEndsASubscription) {
  const auto link = Link({Heard("a") + Push("sunsubscribe", "a", ":0\r\n")});
  link->Subscribe("a");
  EXPECT_THAT(Await(*link, 2), ElementsAre(FieldsAre(Kind::kHeard, "a", ""), FieldsAre(Kind::kEnded, "a", "")));
  EXPECT_TRUE(link->channels().empty());
}

TEST_F(SubscriberLinkTest, AnythingElseEndsTheLink) {
  for (const std::string& answer :
       {std::string(":1\r\n"), std::string("+PONG\r\n"), std::string("*0\r\n"), Heard("b"),
        Push("other", "a", ":1\r\n"), Heard("a") + "-ERR out of nowhere\r\n", std::string("nonsense\r\n")}) {
    const auto link = Link({answer});
    link->Subscribe("a");
    Await(*link, 2);
    EXPECT_TRUE(absl::IsDataLoss(status_)) << answer;
  }
}

TEST_F(SubscriberLinkTest, PingsAfterSilence) {
  const auto link = Link({"*2\r\n" + Bulk("pong") + Bulk(""), Heard("a")});
  const auto minutes = [](int n) { return Clock::Time() + std::chrono::minutes(n); };
  const auto quiet = std::chrono::minutes(2);
  std::vector<ChannelNews> news;
  ASSERT_OK(link->Move(minutes(1), quiet, news));
  EXPECT_EQ(server_->commands().size(), 1u);
  ASSERT_OK(link->Move(minutes(3), quiet, news));
  link->Subscribe("a");
  while (news.empty()) ASSERT_OK(link->Move(minutes(4), quiet, news));  // The pong comes before.
  ASSERT_OK(link->Move(minutes(7), quiet, news));                       // The next PING stays without an answer.
  EXPECT_TRUE(absl::IsUnavailable(link->Move(minutes(10), quiet, news)));
}

}  // namespace
}  // namespace routing_replay::server
