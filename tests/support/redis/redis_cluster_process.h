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

// Not thread-safe, but for what it says.
class RedisClusterProcess {
 public:
  static constexpr int kMasters = 3;
  static constexpr int kNodes = 6;

  // Returns when every node knows the whole cluster and its roles, and every replica has caught up.
  static absl::StatusOr<std::unique_ptr<RedisClusterProcess>> Start(const std::vector<std::string>& settings = {});

  // All nodes as seeds.
  RedisEndpoint endpoint() const;
  // Nodes 0-2 begin as masters, node 3 + i as the replica of node i.
  RedisProcess& node(int index) { return *nodes_[static_cast<size_t>(index)]; }
  // Which node is the master of `slot` now; NOT_FOUND.
  absl::StatusOr<int> MasterOf(int slot);
  // Moves a slot and its keys from its master to another one by the steps of a live resharding. Thread-safe against
  // clients, not against other calls of this.
  absl::Status MoveSlot(int slot, int to);
  // Waits until the living nodes agree that all is well and that `slot` is not at node `dead` any longer.
  absl::Status AwaitFailover(int slot, int dead);
  // The other one of the pair of master and replica that `node` is of.
  static int PartnerOf(int node) { return (node + kMasters) % kNodes; }
  // Starts what was killed again and waits until every master has a replica that has caught up, and all know it.
  absl::Status Heal();
  // "redis://" and all nodes.
  std::string url() const;

 private:
  absl::Status Form();
  absl::Status Await(const std::string& what, const std::function<bool()>& condition);
  absl::Status AskAll(int node, const std::vector<RedisCommand>& commands);
  absl::StatusOr<std::string> IdOf(int node);
  bool InfoHas(int node, const RedisCommand& command, const std::string& text);
  absl::Status MigrateKeys(int slot, int from, int to);
  // Whether every node has heard of everybody's present role, which it does by and by.
  bool AllKnowRoles();
  // Whether `node` itself says that it is the master of `slot`.
  bool Owns(int node, int slot);
  // Waits until the living nodes have heard of each other's last change of slots. A node that takes over a slot without
  // knowing the epoch of the slot's master may choose the same or an older one; a message of that master then on the
  // way takes the slot back, the master gives it away, and each of the two names the other for ever.
  absl::Status AwaitEpochs();

  std::vector<std::unique_ptr<RedisProcess>> nodes_;
};

}  // namespace routing_replay::testing

#endif  // TESTS_SUPPORT_REDIS_REDIS_CLUSTER_PROCESS_H_
