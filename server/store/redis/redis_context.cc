#include "server/store/redis/redis_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/log/event_log.h"

namespace routing_replay::server {
namespace {

// For one server's manifests; 10,000 of samples of 4,000 rows.
constexpr int64_t kCachedBytes = int64_t{64} << 20;
constexpr int64_t kEntryBytes = 512, kPieceBytes = 200;
constexpr std::chrono::minutes kBetweenWarnings{1};

bool IsForCaller(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsResourceExhausted(status);
}

}  // namespace

std::optional<RedisManifest> RedisManifestCache::Find(const std::string& key) {
  MutexLock lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->manifest;
}

void RedisManifestCache::Put(const std::string& key, const RedisManifest& manifest) {
  const SampleContent& content = **manifest.content;
  const int64_t bytes =
      kEntryBytes + content.metadata_bytes() + static_cast<int64_t>(content.pieces.size()) * kPieceBytes;
  MutexLock lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) Erase(found->second);
  entries_.push_front({key, manifest, bytes});
  by_key_[key] = entries_.begin();
  bytes_ += bytes;
  while (bytes_ > kCachedBytes) Erase(std::prev(entries_.end()));
}

void RedisManifestCache::Forget(const std::string& key) {
  MutexLock lock(mutex_);
  if (const auto found = by_key_.find(key); found != by_key_.end()) Erase(found->second);
}

void RedisManifestCache::Erase(std::list<Entry>::iterator entry) {
  bytes_ -= entry->bytes;
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

std::vector<RedisResult> RedisContext::Execute(absl::Span<const RedisRequest> requests) {
  std::vector<RedisResult> results = cluster->Execute(requests, Deadline());
  for (size_t i = 0; i < results.size(); ++i) {
    absl::StatusOr<RedisReply>& reply = results[i].reply;
    if (reply.ok() || IsForCaller(reply.status())) continue;
    const std::string name = requests[i].command.name();
    if (absl::IsCancelled(reply.status())) {
      reply = absl::UnavailableError(absl::StrCat("Redis: ", name, ": this server stops"));
      continue;
    }
    Warn(name, reply.status());
    if (absl::StrContains(reply.status().message(), "WRONGTYPE")) {
      reply = absl::DataLossError("Redis: a key of the store holds something that no server has written");
    } else {
      reply = absl::UnavailableError("Redis rejects this server; the server's log says why");
    }
  }
  return results;
}

absl::StatusOr<RedisReply> RedisContext::Ask(RedisRequest request) {
  return std::move(Execute({&request, 1}).front().reply);
}

absl::StatusOr<RedisReply> RedisContext::Ask(RedisCommand command) { return Ask(Of(std::move(command))); }

RedisRequest RedisContext::Of(RedisCommand command) {
  std::string key(command.argument(1));
  return {.command = std::move(command), .key = std::move(key)};
}

RedisRequest RedisContext::Of(const RedisScript& script, absl::Span<const std::string> keys) {
  return {.command = script.Call(keys), .key = keys.front(), .script = &script};
}

void RedisContext::Warn(const std::string& what, const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    const Clock::Time now = Clock::Real().Now();
    const auto [last, first] = warned_.try_emplace(what, now);
    if (!first && now - last->second < kBetweenWarnings) return;
    last->second = now;
  }
  LogEvent(LogLevel::kWarning, "warning", absl::StrCat("redis store: ", what, ": ", status.message()));
}

}  // namespace routing_replay::server
