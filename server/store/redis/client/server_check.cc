#include "server/store/redis/client/server_check.h"

#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/store/redis/client/decimal.h"

namespace routing_replay::server {
namespace {

using Settings = std::map<std::string, std::string>;

constexpr int kOldestMajor = 7;
// Below these a replica that lags a few samples behind is cut off and starts from the beginning, again and again.
constexpr int64_t kReplicaBufferBytes = int64_t{1} << 30;
constexpr int64_t kBacklogBytes = int64_t{1} << 30;

struct Rule {
  enum class For { kAll, kWithReplicas, kWithoutReplicas, kCluster };
  For whom;
  const char* setting;
  std::function<bool(const std::string&)> good;
  const char* wanted;
};

// What is no number is less than any that is wanted.
int64_t NumberOf(absl::string_view text) { return ParseDecimal(text).value_or(-1); }

// "normal 0 0 0 slave 268435456 67108864 60 pubsub …": class, hard limit, soft limit, seconds; 0 is no limit.
bool ReplicaBufferIsLarge(const std::string& limits) {
  const std::vector<std::string> words = absl::StrSplit(limits, ' ', absl::SkipEmpty());
  for (size_t i = 0; i + 2 < words.size(); i += 4) {
    if (words[i] != "slave" && words[i] != "replica") continue;
    const int64_t hard = NumberOf(words[i + 1]);
    const int64_t soft = NumberOf(words[i + 2]);
    return (hard == 0 || hard >= kReplicaBufferBytes) && (soft == 0 || soft >= kReplicaBufferBytes);
  }
  return true;
}

std::function<bool(const std::string&)> Is(const char* wanted) {
  return [wanted](const std::string& value) { return value == wanted; };
}
std::function<bool(const std::string&)> AtLeast(int64_t least) {
  return [least](const std::string& value) { return NumberOf(value) >= least; };
}

const std::vector<Rule>& Rules() {
  using For = Rule::For;
  static const std::vector<Rule> rules = {
      {For::kAll, "maxmemory-policy", Is("noeviction"),
       "noeviction, or what was acknowledged is dropped when memory is short"},
      {For::kAll, "maxmemory", AtLeast(1),
       "a limit below the machine's memory, so that appends are refused before the system kills the server"},
      {For::kAll, "lazyfree-lazy-expire", Is("yes"), "yes, or expiring samples hold up all others"},
      {For::kWithoutReplicas, "appendonly", Is("yes"),
       "yes, or replicas: all samples are gone when the server restarts"},
      {For::kWithReplicas, "appendonly", Is("yes"),
       "yes, or make sure that a master is never restarted before a replica has taken over: it comes back empty and "
       "empties its replicas"},
      {For::kWithReplicas, "client-output-buffer-limit", ReplicaBufferIsLarge,
       "replica 1gb 1gb 60 or more (or 0 0 0), or replicas fall into full resynchronisation under load"},
      {For::kWithReplicas, "repl-backlog-size", AtLeast(kBacklogBytes),
       "1gb or more, so that a replica that was away for a moment catches up"},
      {For::kCluster, "cluster-require-full-coverage", Is("no"), "no, or a lost server stops the others too"},
  };
  return rules;
}

// The value of "name:value" in an answer to INFO; empty if it is not there.
absl::StatusOr<std::string> InfoOf(RedisCluster& cluster, const RedisAddress& server, absl::string_view section,
                                   absl::string_view name, Clock::Time deadline) {
  const RedisResult result = cluster.ExecuteAt(server, RedisCommand({"INFO", section}), deadline);
  // Who may not ask is not refused for it.
  if (absl::IsPermissionDenied(result.reply.status())) return std::string();
  if (!result.reply.ok()) return result.reply.status();
  for (const absl::string_view line : absl::StrSplit(result.reply->text, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (pair.first == name) return std::string(pair.second);
  }
  return std::string();
}

absl::StatusOr<Settings> ReadSettings(RedisCluster& cluster, const RedisAddress& server, Clock::Time deadline) {
  RedisCommand command({"CONFIG", "GET", "*"});
  RedisResult result = cluster.ExecuteAt(server, command, deadline);
  if (!result.reply.ok()) return result.reply.status();
  auto pairs = TakeArray(*std::move(result.reply));
  if (!pairs.ok()) return pairs.status();
  Settings settings;
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) settings[(*pairs)[i].text] = (*pairs)[i + 1].text;
  return settings;
}

absl::Status CheckVersion(RedisCluster& cluster, const RedisAddress& server, Clock::Time deadline) {
  const auto version = InfoOf(cluster, server, "server", "redis_version", deadline);
  if (!version.ok()) return version.status();
  if (version->empty() || NumberOf(version->substr(0, version->find('.'))) >= kOldestMajor) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(server.ToString(), " is Redis ", *version, "; sharded channels need 7.0 or newer, or Valkey"));
}

absl::Status CheckServer(RedisCluster& cluster, const RedisAddress& server, Clock::Time deadline,
                         std::vector<std::string>& warnings) {
  if (auto status = CheckVersion(cluster, server, deadline); !status.ok()) return status;
  const auto settings = ReadSettings(cluster, server, deadline);
  if (absl::IsPermissionDenied(settings.status()) || absl::IsFailedPrecondition(settings.status())) {
    warnings.push_back(absl::StrCat(server.ToString(),
                                    ": its settings cannot be read (CONFIG GET): make sure yourself ",
                                    "that maxmemory-policy is noeviction"));
    return absl::OkStatus();
  }
  if (!settings.ok()) return settings.status();
  const auto replicas = InfoOf(cluster, server, "replication", "connected_slaves", deadline);
  if (!replicas.ok()) return replicas.status();
  const Rule::For others = NumberOf(*replicas) > 0 ? Rule::For::kWithoutReplicas : Rule::For::kWithReplicas;
  const auto concerns = [&](Rule::For whom) {
    return whom != others && (whom != Rule::For::kCluster || cluster.clustered());
  };
  for (const Rule& rule : Rules()) {
    const auto found = settings->find(rule.setting);
    if (!concerns(rule.whom) || found == settings->end() || rule.good(found->second)) continue;
    warnings.push_back(
        absl::StrCat(server.ToString(), ": ", rule.setting, " is ", found->second, "; wanted: ", rule.wanted));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckRedisServers(RedisCluster& cluster, Clock::Time deadline) {
  std::vector<std::string> warnings;
  for (const RedisAddress& server : cluster.Masters()) {
    if (auto status = CheckServer(cluster, server, deadline, warnings); !status.ok()) return status;
  }
  return warnings;
}

}  // namespace routing_replay::server
