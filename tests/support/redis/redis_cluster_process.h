// A real Redis Cluster of three masters with a replica each.
#ifndef TESTS_SUPPORT_REDIS_REDIS_CLUSTER_PROCESS_H_
#define TESTS_SUPPORT_REDIS_REDIS_CLUSTER_PROCESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/support/redis/redis_process.h"

namespace routing_replay::testing {

// Not thread-safe, except where noted.
class RedisClusterProcess {
 public:
  static constexpr int kMasters = 3;
  static constexpr int kNodes = 6;

  // Returns when every node knows the whole cluster and its roles, and every replica has caught up.
  static absl::StatusOr<std::unique_ptr<RedisClusterProcess>> Start(const std::vector<std::string>& settings = {});

  // All nodes as seeds.
  RedisEndpoint endpoint() const;
  // Initially nodes 0-2 are masters, and node 3 + i is the replica of node i.
  RedisProcess& node(int index) { return *nodes_[static_cast<size_t>(index)]; }
  // The present master of `slot`, or NOT_FOUND.
  absl::StatusOr<int> MasterOf(int slot);
  // Moves a slot and its keys from its master to another one by the steps of a live resharding. Clients may use the
  // cluster meanwhile, but only one thread may call MoveSlot.
  absl::Status MoveSlot(int slot, int to);
  // Waits until the living nodes agree that the cluster is healthy and that `slot` is no longer on node `dead`.
  absl::Status AwaitFailover(int slot, int dead);
  // Each master and its replica are a pair. Returns the other node of the pair of `node`.
  static int PartnerOf(int node) { return (node + kMasters) % kNodes; }
  // Restarts killed nodes and waits until every master has a replica that has caught up, and all nodes know it.
  absl::Status Heal();
  // "redis://" followed by all nodes.
  std::string url() const;

 private:
  absl::Status Form();
  absl::Status Await(const std::string& what, const std::function<bool()>& condition);
  absl::Status AskAll(int node, const std::vector<RedisCommand>& commands);
  absl::StatusOr<std::string> IdOf(int node);
  bool InfoHas(int node, const RedisCommand& command, const std::string& text);
  absl::Status MigrateKeys(int slot, int from, int to);
  // Whether gossip has told every node the present roles.
  bool AllKnowRoles();
  // Whether `node` considers itself the master of `slot`.
  bool Owns(int node, int slot);
  // Waits until the living nodes agree on the current epoch. Otherwise a node that takes over a slot may choose an
  // epoch that is not newer than that of the slot's old master. Then a gossip message of the old master takes the slot
  // back, although the old master has given it away: each of the two names the other as the owner, and this never ends.
  absl::Status AwaitEpochs();

  std::vector<std::unique_ptr<RedisProcess>> nodes_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_REDIS_REDIS_CLUSTER_PROCESS_H_
