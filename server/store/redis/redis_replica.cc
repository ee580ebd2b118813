#include "server/store/redis/redis_replica.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace routing_replay::server {
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

// Whether the answer to INFO replication names one that follows. One that is only being given a first copy is named,
// too, which may take minutes.
bool NamesFollower(absl::string_view replication) {
  const std::vector<absl::string_view> lines = absl::StrSplit(replication, absl::ByAnyChar("\r\n"));
  return std::any_of(lines.begin(), lines.end(), [](absl::string_view line) {
    return absl::StartsWith(line, "slave") && absl::StrContains(line, ",state=online,");
  });
}

enum class Named { kNone, kFailed, kAlive };

// What the answer to CLUSTER NODES says of the replicas of the node that gave it: kAlive if one of them is not taken
// for failed. (CLUSTER SLOTS leaves out those that have not told the others yet how far they are.)
Named NamedReplicas(absl::string_view nodes) {
  absl::string_view asked;
  std::set<absl::string_view> masters_of_alive;
  std::set<absl::string_view> masters_of_failed;
  for (const absl::string_view node : absl::StrSplit(nodes, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(node, ' ');  // Id, address, flags, id of its master, …
    if (parts.size() < 4) continue;
    const std::set<absl::string_view> flags = absl::StrSplit(parts[2], ',');
    if (flags.contains("myself")) asked = parts[0];
    if (flags.contains("slave")) (flags.contains("fail") ? masters_of_failed : masters_of_alive).insert(parts[3]);
  }
  if (masters_of_alive.contains(asked)) return Named::kAlive;
  return masters_of_failed.contains(asked) ? Named::kFailed : Named::kNone;
}

// A cluster knows better than the master's connections: a replica that has lost its own may be elected all the same,
// and one that is taken for failed may have one for a long time still. Of one that is new the others hear by and by.
absl::StatusOr<bool> HasReplica(RedisContext& context, const RedisRun& run, const std::string& key,
                                Clock::Time deadline) {
  std::vector<RedisRequest> requests = {AtMaster(RedisCommand({"INFO", "replication"}), run, key)};
  if (context.cluster->clustered()) requests.push_back(AtMaster(RedisCommand({"CLUSTER", "NODES"}), run, key));
  const std::vector<RedisResult> answers = context.cluster->Execute(requests, deadline);
  for (const RedisResult& answer : answers) {
    if (!answer.reply.ok()) return answer.reply.status();
  }
  const Named named = answers.size() > 1 ? NamedReplicas(answers.back().reply->text) : Named::kNone;
  return named == Named::kAlive || (named == Named::kNone && NamesFollower(answers.front().reply->text));
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

}  // namespace routing_replay::server
