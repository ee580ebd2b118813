#include "server/store/redis/redis_replica.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace routing_replay {
namespace {

// After so long it is asked again whether there is a replica to wait for.
constexpr std::chrono::milliseconds kWait(200);

// Behind a write, which only the master of the key takes. WAIT is about what its own connection has written, and so
// about all that the master had done before.
RedisRequest AtMaster(RedisCommand command, const RedisRun& run, const std::string& key) {
  RedisCommand write({"PEXPIRE", key});
  write.Add(run.lives.manifest().count());
  return {.command = std::move(command), .key = key, .before = {std::move(write)}};
}

// Whether the answer to CLUSTER NODES names a replica of the node that gave it which is not taken for failed. (CLUSTER
// SLOTS leaves out those that have not told the others yet how far they are.)
bool NamesReplica(absl::string_view nodes) {
  absl::string_view asked;
  std::vector<absl::string_view> masters_of_replicas;
  for (const absl::string_view node : absl::StrSplit(nodes, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(node, ' ');  // Id, address, flags, id of its master, …
    if (parts.size() < 4) continue;
    const std::set<absl::string_view> flags = absl::StrSplit(parts[2], ',');
    if (flags.contains("myself")) asked = parts[0];
    if (flags.contains("slave") && !flags.contains("fail")) masters_of_replicas.push_back(parts[3]);
  }
  return std::count(masters_of_replicas.begin(), masters_of_replicas.end(), asked) > 0;
}

// A replica of a cluster that has lost its connection may be elected all the same.
absl::StatusOr<bool> HasReplica(RedisContext& context, const RedisRun& run, const std::string& key,
                                Clock::Time deadline) {
  std::vector<RedisRequest> requests = {AtMaster(RedisCommand({"INFO", "replication"}), run, key)};
  if (context.cluster->clustered()) requests.push_back(AtMaster(RedisCommand({"CLUSTER", "NODES"}), run, key));
  const std::vector<RedisResult> answers = context.cluster->Execute(requests, deadline);
  for (const RedisResult& answer : answers) {
    if (!answer.reply.ok()) return answer.reply.status();
  }
  if (!absl::StrContains(answers.front().reply->text, "connected_slaves:0\r")) return true;
  return answers.size() > 1 && NamesReplica(answers.back().reply->text);
}

// Whether a replica has it, or there is none. Waits a little.
absl::StatusOr<bool> IsKept(RedisContext& context, const RedisRun& run, const std::string& key, Clock::Time deadline) {
  const absl::StatusOr<bool> has_replica = HasReplica(context, run, key, deadline);
  if (!has_replica.ok()) return has_replica.status();
  if (!*has_replica) return true;
  RedisCommand wait({"WAIT", "1"});
  wait.Add(kWait.count());
  const RedisResult waited = context.cluster->ExecuteOne(AtMaster(std::move(wait), run, key), deadline);
  if (!waited.reply.ok()) return waited.reply.status();
  return waited.reply->integer > 0;
}

}  // namespace

absl::Status AwaitReplica(RedisContext& context, const RedisRun& run, const std::string& manifest_key) {
  const Clock::Time deadline = context.Deadline();
  do {
    const absl::StatusOr<bool> kept = IsKept(context, run, manifest_key, deadline);
    if (kept.ok() && *kept) return absl::OkStatus();
    if (!kept.ok() && !absl::IsDeadlineExceeded(kept.status())) return kept.status();
  } while (Clock::Real().Now() + kWait < deadline);
  return absl::UnavailableError("no replica of Redis has the change yet");
}

}  // namespace routing_replay
