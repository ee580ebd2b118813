#include "server/store/redis/redis_replica.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/store/conformance/conformance.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr char kAlone[] = "role:master\r\nconnected_slaves:0\r\n";
constexpr char kFollowed[] =
    "role:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=9,lag=0\r\n";
constexpr char kCopying[] =
    "role:master\r\nconnected_slaves:1\r\nslave0:ip=10.0.0.2,port=6379,state=send_bulk,offset=0,lag=0\r\n";

// A master, and what it says of its replicas; none of them ever has a change.
class DeafReplicas final : public RedisCluster {
 public:
  DeafReplicas(std::string replication, std::string nodes)
      : replication_(std::move(replication)), nodes_(std::move(nodes)) {}

  std::vector<RedisResult> Execute(absl::Span<const RedisRequest> requests, Clock::Time) override {
    std::vector<RedisResult> results;
    for (const RedisRequest& request : requests) results.push_back({.reply = Answer(request.command.name())});
    return results;
  }
  RedisResult ExecuteAt(const RedisAddress&, const RedisCommand&, Clock::Time) override { return {}; }
  std::vector<RedisAddress> Masters() override { return {}; }
  bool clustered() const override { return !nodes_.empty(); }
  RedisClusterCounters counters() const override { return {}; }
  void Abandon() override {}
  std::shared_ptr<RedisTopology> topology() override { return nullptr; }

 private:
  RedisReply Answer(const std::string& command) const {
    if (command == "WAIT") return {.type = RedisReply::Type::kInteger, .integer = 0};
    return {.type = RedisReply::Type::kBulk, .text = command == "INFO" ? replication_ : nodes_};
  }

  const std::string replication_;
  const std::string nodes_;
};

// `nodes`: empty for one server alone.
absl::Status Await(const std::string& replication, const std::string& nodes) {
  RedisContext context(std::make_shared<DeafReplicas>(replication, nodes), "rr", Clock::Real(), 16, 1 << 20);
  context.timeout = std::chrono::milliseconds(1);
  const RedisRun run(context, RunInfo{.run = "run"}, "1");
  return AwaitReplica(context, run, "key");
}

// The master and its replica, as CLUSTER NODES has them, and the pair of another.
std::string Nodes(const std::string& flags_of_replica) {
  return "a 10.0.0.1:6379@16379 myself,master - 0 0 1 connected 0-8191\n"
         "b 10.0.0.2:6379@16379 " +
         flags_of_replica +
         " a 0 0 1 connected\n"
         "c 10.0.0.3:6379@16379 master - 0 0 2 connected 8192-16383\n"
         "d 10.0.0.4:6379@16379 slave c 0 0 2 connected\n";
}

TEST(RedisReplicaTest, OneServerAloneWaitsForWhatFollowsIt) {
  EXPECT_OK(Await(kAlone, ""));
  EXPECT_OK(Await(kCopying, ""));
  EXPECT_TRUE(absl::IsUnavailable(Await(kFollowed, "")));
}

TEST(RedisReplicaTest, AClusterWaitsForWhatItDoesNotTakeForFailed) {
  for (const char* replication : {kAlone, kCopying, kFollowed}) {
    EXPECT_TRUE(absl::IsUnavailable(Await(replication, Nodes("slave")))) << replication;
    EXPECT_TRUE(absl::IsUnavailable(Await(replication, Nodes("slave,fail?")))) << replication;
    EXPECT_OK(Await(replication, Nodes("slave,fail"))) << replication;
  }
}

TEST(RedisReplicaTest, AReplicaThatTheClusterHasNotHeardOfIsWaitedFor) {
  EXPECT_TRUE(absl::IsUnavailable(Await(kFollowed, Nodes("handshake"))));
  EXPECT_OK(Await(kAlone, Nodes("handshake")));
}

}  // namespace
}  // namespace routing_replay::testing
