// Opens the store that a --store value names.
#ifndef SERVER_CONFIG_OPEN_STORE_H_
#define SERVER_CONFIG_OPEN_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/store/memory/memory_store.h"
#include "server/store/store.h"

namespace routing_replay::server {

// INVALID_ARGUMENT names the setting that is wrong. `name`: "memory"; "rocksdb:PATH" with the directory of a database,
// which is created if it does not exist; or a URL for ParseRedisEndpoint: "redis://HOST:PORT,…", "rediss://…".
// `durability`: the default for runs that set none: "memory", "written" or "synced", not above the highest that the
// store can give; empty: the store's default. `spill_directory`: must be empty for a store that does not spill.
absl::Status CheckStore(absl::string_view name, absl::string_view durability, absl::string_view spill_directory);

struct OpenedStore {
  std::unique_ptr<Store> store;
  std::string found;  // One line about the data that RocksDB had, or whether Redis is a cluster; empty for "memory".
};

// Returns how many of `memory_bytes` (--memory-budget) the store uses to cache its disk; a ByteBudget gets the rest.
int64_t CacheBytes(absl::string_view name, int64_t memory_bytes);

// How OpenStore waits for Redis, if the server is started at the same time as Redis or earlier.
struct StoreWait {
  // Called every few seconds; returns true to end the wait.
  std::function<bool()> give_up = [] { return false; };
  // Gets one line at the first failure, and another every 30 s.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// Opens the store. CheckStore must have accepted the settings. Errors: CANCELLED if `give_up` returned true;
// UNAVAILABLE, DATA_LOSS, RESOURCE_EXHAUSTED, PERMISSION_DENIED or FAILED_PRECONDITION from the store itself.
absl::StatusOr<OpenedStore> OpenStore(absl::string_view name, absl::string_view durability, int64_t cache_bytes,
                                      MemoryStoreOptions options, const StoreWait& wait = {});

}  // namespace routing_replay::server

#endif  // SERVER_CONFIG_OPEN_STORE_H_
