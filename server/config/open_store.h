// Which store a server uses, by the name that a user gives it.
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

// INVALID_ARGUMENT naming the setting that is wrong. `name`: "memory"; "rocksdb:PATH" with the directory of a database,
// which is made if it is not there; or what ParseRedisEndpoint takes: "redis://HOST:PORT,…", "rediss://…".
// `durability`: what runs get that ask for none, "memory", "written" or "synced", and not above what the store can;
// empty: what the store does by default. `spill_directory`: empty of a store that does not spill.
absl::Status CheckStore(absl::string_view name, absl::string_view durability, absl::string_view spill_directory);

struct OpenedStore {
  std::unique_ptr<Store> store;
  std::string found;  // One line on what was there already; empty of a store that begins empty.
};

// Of so much memory, the part that the store uses outside of the budget that it is given: a cache of what is on a
// disk.
int64_t CacheBytes(absl::string_view name, int64_t memory_bytes);

// While Redis cannot be reached: a server that starts together with its Redis, or before it, waits for it.
struct StoreWait {
  // Asked every few seconds: true ends the wait.
  std::function<bool()> give_up = [] { return false; };
  // Takes one line at the first failure, and another every 30 s.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

// Requires CheckStore. Errors: CANCELLED if `wait` gave up; UNAVAILABLE, DATA_LOSS,
// RESOURCE_EXHAUSTED, PERMISSION_DENIED, FAILED_PRECONDITION as the store's own.
absl::StatusOr<OpenedStore> OpenStore(absl::string_view name, absl::string_view durability, int64_t cache_bytes,
                                      MemoryStoreOptions options, const StoreWait& wait = {});

}  // namespace routing_replay::server

#endif  // SERVER_CONFIG_OPEN_STORE_H_
