#include "server/config/open_store.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"
#include "server/store/redis/redis_store.h"
#include "server/store/rocksdb/rocks_store.h"

namespace routing_replay::server {
namespace {

constexpr absl::string_view kMemory = "memory";
constexpr absl::string_view kRocksPrefix = "rocksdb:";
constexpr int64_t kMostCacheBytes = int64_t{4} << 30;
// kLook: time limit of one attempt to reach Redis. kPause: time between attempts. kBetweenWarnings: between log lines.
constexpr std::chrono::seconds kLook{5};
constexpr std::chrono::milliseconds kPause{500};
constexpr std::chrono::seconds kBetweenWarnings{30};

bool IsRedis(absl::string_view name) {
  return absl::StartsWith(name, "redis://") || absl::StartsWith(name, "rediss://");
}

DurabilityLevels LevelsOf(absl::string_view store) {
  if (IsRedis(store)) return kRedisDurability;
  if (store == kMemory) return {};
  return {Durability::kWritten, Durability::kSynced};
}

absl::Status InvalidOption(absl::string_view key, absl::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, absl::StrCat("--", key, ": ", what),
                   {.reason = Reason::kField, .field = std::string(key)});
}

absl::StatusOr<std::shared_ptr<RedisCluster>> AwaitRedis(const RedisEndpoint& endpoint, const StoreWait& wait) {
  Clock::Time next_warning = Clock::Real().Now();
  while (true) {
    absl::StatusOr<std::shared_ptr<RedisCluster>> reached =
        RedisCluster::Connect(endpoint, {}, Clock::Real().Now() + kLook);
    const bool may_come = absl::IsUnavailable(reached.status()) || absl::IsDeadlineExceeded(reached.status());
    if (!may_come) return reached;
    if (Clock::Real().Now() >= next_warning) {
      wait.warn(absl::StrCat("waiting for Redis: ", reached.status().message()));
      next_warning = Clock::Real().Now() + kBetweenWarnings;
    }
    if (wait.give_up()) return absl::CancelledError("stopped while waiting for Redis");
    std::this_thread::sleep_for(kPause);
  }
}

absl::StatusOr<OpenedStore> OpenRedis(absl::string_view name, MemoryStoreOptions options, const StoreWait& wait) {
  RR_ASSIGN_OR_RETURN(const RedisEndpoint endpoint, ParseRedisEndpoint(name));
  const std::string prefix = endpoint.prefix.empty() ? RedisStoreOptions().prefix : endpoint.prefix;
  RR_ASSIGN_OR_RETURN(const std::shared_ptr<RedisCluster> cluster, AwaitRedis(endpoint, wait));
  std::string found = cluster->clustered() ? "a Redis cluster" : "one Redis server";
  return OpenedStore{NewRedisStore(cluster, {.clock = options.clock,
                                             .default_ttl = options.default_ttl,
                                             .handle_of = std::move(options.handle_of),
                                             .prefix = prefix}),
                     std::move(found)};
}

absl::Status CheckName(absl::string_view name) {
  if (name == kMemory) return absl::OkStatus();
  if (IsRedis(name)) {
    const absl::Status status = ParseRedisEndpoint(name).status();
    return status.ok() ? status : InvalidOption("store", status.message());
  }
  if (!absl::ConsumePrefix(&name, kRocksPrefix)) {
    return InvalidOption(
        "store",
        absl::StrCat("'", name, "' must be memory, rocksdb:PATH, redis://HOST:PORT,… or rediss://HOST:PORT,…"));
  }
  return name.empty() ? InvalidOption("store", "rocksdb: needs the path of a directory") : absl::OkStatus();
}

}  // namespace

absl::Status CheckStore(absl::string_view name, absl::string_view durability, absl::string_view spill_directory) {
  RR_RETURN_IF_ERROR(CheckName(name));
  if (!spill_directory.empty() && name != kMemory) {
    return InvalidOption("spill-directory", absl::StrCat("only --store memory can spill, not ", name));
  }
  if (durability.empty()) return absl::OkStatus();
  const std::optional<Durability> level = DurabilityFromName(durability);
  if (!level) {
    return InvalidOption("durability", absl::StrCat("'", durability, "' must be memory, written or synced"));
  }
  const Durability best = LevelsOf(name).best;
  if (*level <= best) return absl::OkStatus();
  return InvalidOption(
      "durability",
      absl::StrCat(durability, " is not possible with this store; its highest durability is ", DurabilityName(best)));
}

int64_t CacheBytes(absl::string_view name, int64_t memory_bytes) {
  return absl::StartsWith(name, kRocksPrefix) ? std::min(memory_bytes / 4, kMostCacheBytes) : 0;
}

absl::StatusOr<OpenedStore> OpenStore(absl::string_view name, absl::string_view durability, int64_t cache_bytes,
                                      MemoryStoreOptions options, const StoreWait& wait) {
  if (IsRedis(name)) return OpenRedis(name, std::move(options), wait);
  if (name == kMemory) return OpenedStore{NewMemoryStore(std::move(options)), ""};
  RecoveryReport report;
  RR_ASSIGN_OR_RETURN(auto store,
                      OpenRocksStore({.path = std::string(absl::StripPrefix(name, kRocksPrefix)),
                                      .durability = DurabilityFromName(durability).value_or(LevelsOf(name).by_default),
                                      .cache_bytes = cache_bytes,
                                      .memory = std::move(options)},
                                     report));
  return OpenedStore{std::move(store), Describe(report)};
}

}  // namespace routing_replay::server
