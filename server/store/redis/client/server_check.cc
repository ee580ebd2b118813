#include "server/store/redis/client/server_check.h"

#include <functional>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace routing_replay {
namespace {

using Settings = std::map<std::string, std::string>;

constexpr int kOldestMajor = 7;
// Below this a replica that lags behind a few samples is cut off, and starts from the beginning.
constexpr int64_t kReplicaBufferBytes = int64_t{1} << 30;
constexpr int64_t kBacklogBytes = int64_t{256} << 20;

struct Rule {
  const char* setting;
  std::function<bool(const std::string&)> good;
  const char* wanted;
};

int64_t NumberOf(absl::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(text, &number) ? number : -1;
}

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

const std::vector<Rule>& Rules() {
  static const std::vector<Rule> rules = {
      {"maxmemory-policy", [](const std::string& value) { return value == "noeviction"; },
       "noeviction, or what was acknowledged is dropped when memory is short"},
      {"maxmemory", [](const std::string& value) { return NumberOf(value) > 0; },
       "a limit below the machine's memory, so that appends are refused before the system kills the server"},
      {"appendonly", [](const std::string& value) { return value == "yes"; },
       "yes, if acknowledged rows are to survive a restart of the server"},
      {"client-output-buffer-limit", ReplicaBufferIsLarge,
       "replica 1gb 1gb 60 or more (or 0 0 0), or replicas fall into endless full resynchronisation"},
      {"repl-backlog-size", [](const std::string& value) { return NumberOf(value) >= kBacklogBytes; },
       "256mb or more, so that a replica that was away for a moment catches up"},
      {"proto-max-bulk-len", [](const std::string& value) { return NumberOf(value) >= int64_t{4} << 20; },
       "4mb or more"},
  };
  return rules;
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
  RedisResult result = cluster.ExecuteAt(server, RedisCommand({"INFO", "server"}), deadline);
  // Who may not ask is not refused for it.
  if (absl::IsPermissionDenied(result.reply.status())) return absl::OkStatus();
  if (!result.reply.ok()) return result.reply.status();
  for (const absl::string_view line : absl::StrSplit(result.reply->text, "\r\n")) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (pair.first != "redis_version") continue;
    const absl::string_view major = pair.second.substr(0, pair.second.find('.'));
    if (NumberOf(major) >= kOldestMajor) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(server.ToString(), " is Redis ", pair.second, "; sharded channels need 7.0 or newer, or Valkey"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CheckRedisServers(RedisCluster& cluster, Clock::Time deadline) {
  std::vector<std::string> warnings;
  for (const RedisAddress& server : cluster.Masters()) {
    if (auto status = CheckVersion(cluster, server, deadline); !status.ok()) return status;
    const auto settings = ReadSettings(cluster, server, deadline);
    if (absl::IsPermissionDenied(settings.status()) || absl::IsFailedPrecondition(settings.status())) {
      warnings.push_back(absl::StrCat(server.ToString(),
                                      ": settings cannot be read (CONFIG GET): check maxmemory-policy",
                                      " = noeviction and the others by hand"));
      continue;
    }
    if (!settings.ok()) return settings.status();
    for (const Rule& rule : Rules()) {
      const auto found = settings->find(rule.setting);
      if (found == settings->end() || rule.good(found->second)) continue;
      warnings.push_back(
          absl::StrCat(server.ToString(), ": ", rule.setting, " is ", found->second, "; wanted: ", rule.wanted));
    }
  }
  return warnings;
}

}  // namespace routing_replay
