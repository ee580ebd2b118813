#include "tests/support/redis/redis_cluster_process.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "server/store/redis/client/redis_cluster.h"

namespace routing_replay::testing {

using namespace server;  // NOLINT(google-build-using-namespace)
namespace {

constexpr std::chrono::seconds kFormTimeout(30);
constexpr std::chrono::milliseconds kPoll(50);
constexpr const char* kHost = "127.0.0.1";

const std::vector<std::string>& ClusterSettings() {
  static const std::vector<std::string> settings = {"--cluster-enabled",
                                                    "yes",
                                                    "--cluster-node-timeout",
                                                    "1500",
                                                    "--cluster-replica-validity-factor",
                                                    "0",
                                                    "--cluster-require-full-coverage",
                                                    "no",
                                                    "--repl-diskless-sync-delay",
                                                    "0",
                                                    "--repl-ping-replica-period",
                                                    "1"};
  return settings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisClusterProcess>> RedisClusterProcess::Start(
    const std::vector<std::string>& settings) {
  auto cluster = std::make_unique<RedisClusterProcess>();
  std::vector<std::string> all = ClusterSettings();
  all.insert(all.end(), settings.begin(), settings.end());
  for (int i = 0; i < kNodes; ++i) {
    auto node = RedisProcess::Start(all);
    if (!node.ok()) return node.status();
    cluster->nodes_.push_back(*std::move(node));
  }
  if (auto status = cluster->Form(); !status.ok()) return status;
  return cluster;
}

RedisEndpoint RedisClusterProcess::endpoint() const {
  RedisEndpoint endpoint;
  for (const auto& node : nodes_) endpoint.seeds.push_back(node->address());
  return endpoint;
}

absl::Status RedisClusterProcess::AskAll(int node, const std::vector<RedisCommand>& commands) {
  for (const RedisCommand& command : commands) {
    const auto reply = this->node(node).Ask(command);
    if (!reply.ok()) return reply.status();
    if (reply->is_error()) return absl::InternalError(absl::StrCat(command.name(), ": ", reply->text));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RedisClusterProcess::IdOf(int node) {
  auto reply = this->node(node).Ask(RedisCommand({"CLUSTER", "MYID"}));
  if (!reply.ok()) return reply.status();
  return std::move(reply->text);
}

bool RedisClusterProcess::InfoHas(int node, const RedisCommand& command, const std::string& text) {
  const auto reply = this->node(node).Ask(command);
  return reply.ok() && absl::StrContains(reply->text, text);
}

absl::Status RedisClusterProcess::Await(const std::string& what, const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kFormTimeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return absl::DeadlineExceededError(what);
    std::this_thread::sleep_for(kPoll);
  }
  return absl::OkStatus();
}

absl::Status RedisClusterProcess::Form() {
  const RedisCommand info({"CLUSTER", "INFO"});
  for (int i = 0; i < kNodes; ++i) {
    std::vector<RedisCommand> commands = {RedisCommand({"CLUSTER", "SET-CONFIG-EPOCH", absl::StrCat(i + 1)})};
    if (i < kMasters) {
      commands.push_back(RedisCommand({"CLUSTER", "ADDSLOTSRANGE", absl::StrCat(kRedisSlots * i / kMasters),
                                       absl::StrCat(kRedisSlots * (i + 1) / kMasters - 1)}));
    }
    const RedisPorts ports = node(i).ports();
    if (auto status = AskAll(i, commands); !status.ok()) return status;
    if (i == 0) continue;
    const RedisCommand meet({"CLUSTER", "MEET", kHost, absl::StrCat(ports.client), absl::StrCat(ports.cluster)});
    if (auto status = AskAll(0, {meet}); !status.ok()) return status;
  }
  const auto everybody = [&](const RedisCommand& command, const std::string& text, int first) {
    for (int i = first; i < kNodes; ++i) {
      if (!InfoHas(i, command, text)) return false;
    }
    return true;
  };
  auto status = Await("the nodes did not meet", [&] {
    return everybody(info, absl::StrCat("cluster_known_nodes:", kNodes), 0) && everybody(info, "cluster_state:ok", 0);
  });
  for (int i = kMasters; i < kNodes && status.ok(); ++i) {
    const auto master = IdOf(i - kMasters);
    if (!master.ok()) return master.status();
    status = AskAll(i, {RedisCommand({"CLUSTER", "REPLICATE", *master})});
  }
  if (!status.ok()) return status;
  return Await("the replicas did not catch up", [&] {
    return everybody(RedisCommand({"INFO", "replication"}), "master_link_status:up", kMasters) &&
           everybody(info, absl::StrCat("cluster_size:", kMasters), 0) && everybody(info, "cluster_state:ok", 0) &&
           AllKnowRoles();
  });
}

absl::StatusOr<int> RedisClusterProcess::MasterOf(int slot) {
  for (const auto& node : nodes_) {
    const auto reply = node->Ask(RedisCommand({"CLUSTER", "SLOTS"}));
    if (!reply.ok()) continue;
    const auto map = SlotMap::Parse(*reply, kHost);
    if (!map.ok()) return map.status();
    for (int i = 0; i < kNodes; ++i) {
      if (map->MasterOf(slot) == this->node(i).address()) return i;
    }
  }
  return absl::NotFoundError(absl::StrCat("no master of slot ", slot));
}

absl::Status RedisClusterProcess::MigrateKeys(int slot, int from, int to) {
  while (true) {
    const auto keys = node(from).Ask(RedisCommand({"CLUSTER", "GETKEYSINSLOT", absl::StrCat(slot), "10"}));
    if (!keys.ok()) return keys.status();
    if (keys->elements.empty()) return absl::OkStatus();
    RedisCommand migrate({"MIGRATE", kHost, absl::StrCat(node(to).ports().client), "", "0", "5000", "KEYS"});
    for (const RedisReply& key : keys->elements) migrate.Add(key.text);
    if (auto status = AskAll(from, {migrate}); !status.ok()) return status;
  }
}

absl::Status RedisClusterProcess::MoveSlot(int slot, int to) {
  const auto from = MasterOf(slot);
  if (!from.ok()) return from.status();
  if (*from == to) return absl::OkStatus();
  const auto from_id = IdOf(*from);
  const auto to_id = IdOf(to);
  if (!from_id.ok() || !to_id.ok()) return absl::UnavailableError("a node does not say its id");
  const std::string number = absl::StrCat(slot);
  auto status = AskAll(to, {RedisCommand({"CLUSTER", "SETSLOT", number, "IMPORTING", *from_id})});
  if (status.ok()) status = AskAll(*from, {RedisCommand({"CLUSTER", "SETSLOT", number, "MIGRATING", *to_id})});
  if (status.ok()) status = MigrateKeys(slot, *from, to);
  const RedisCommand assign({"CLUSTER", "SETSLOT", number, "NODE", *to_id});
  if (status.ok()) status = AwaitEpochs();
  if (status.ok()) status = AskAll(to, {assign});
  if (status.ok()) status = AskAll(*from, {assign});
  // Tells the other nodes at once instead of waiting for the gossip.
  for (int i = 0; i < kNodes && status.ok(); ++i) {
    if (i != to && i != *from) AskAll(i, {assign}).IgnoreError();  // Replicas reject it.
  }
  if (status.ok() && !Owns(to, slot)) return absl::AbortedError(absl::StrCat("node ", to, " lost slot ", slot));
  return status;
}

bool RedisClusterProcess::AllKnowRoles() {
  return std::all_of(nodes_.begin(), nodes_.end(), [](const auto& node) {
    const auto known = node->Ask(RedisCommand({"CLUSTER", "NODES"}));
    if (!known.ok() || absl::StrContains(known->text, "fail")) return false;
    const std::vector<absl::string_view> lines = absl::StrSplit(known->text, '\n');
    const auto replica = [](absl::string_view line) { return absl::StrContains(line, "slave "); };
    return std::count_if(lines.begin(), lines.end(), replica) == kNodes - kMasters;
  });
}

bool RedisClusterProcess::Owns(int node, int slot) {
  const auto reply = this->node(node).Ask(RedisCommand({"CLUSTER", "SLOTS"}));
  if (!reply.ok()) return false;
  const auto map = SlotMap::Parse(*reply, kHost);
  return map.ok() && map->MasterOf(slot) == this->node(node).address();
}

absl::Status RedisClusterProcess::AwaitEpochs() {
  return Await("the nodes do not agree on the current epoch", [&] {
    std::set<std::string> epochs;
    for (const auto& node : nodes_) {
      const auto reply = node->Ask(RedisCommand({"CLUSTER", "INFO"}));
      if (!reply.ok()) continue;  // A dead node does not count.
      for (const absl::string_view line : absl::StrSplit(reply->text, "\r\n")) {
        if (absl::StartsWith(line, "cluster_current_epoch:")) epochs.emplace(line);
      }
    }
    return epochs.size() == 1;
  });
}

absl::Status RedisClusterProcess::AwaitFailover(int slot, int dead) {
  return Await("nobody took over", [&] {
    const auto master = MasterOf(slot);
    return master.ok() && *master != dead && InfoHas(*master, RedisCommand({"CLUSTER", "INFO"}), "cluster_state:ok");
  });
}

absl::Status RedisClusterProcess::Heal() {
  for (const auto& node : nodes_) {
    if (node->Ask(RedisCommand({"PING"})).ok()) continue;
    if (auto status = node->Restart(); !status.ok()) return status;
  }
  const auto count = [&](const std::string& text) {
    int nodes = 0;
    for (int i = 0; i < kNodes; ++i) nodes += InfoHas(i, RedisCommand({"INFO", "replication"}), text);
    return nodes;
  };
  return Await("the cluster did not heal", [&] {
    for (int i = 0; i < kNodes; ++i) {
      if (!InfoHas(i, RedisCommand({"CLUSTER", "INFO"}), "cluster_state:ok")) return false;
    }
    return count("role:master") == kMasters && count("master_link_status:up") == kMasters &&
           count("connected_slaves:1") == kMasters && AllKnowRoles();
  });
}

std::string RedisClusterProcess::url() const {
  std::string url = "redis://";
  for (const auto& node : nodes_) {
    absl::StrAppend(&url, url.size() > 8 ? "," : "", kHost, ":", node->ports().client);
  }
  return url;
}

}  // namespace routing_replay::testing
