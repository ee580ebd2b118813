// A store that counts what goes wrong in it, and notes the weight versions that pass.
#ifndef SERVER_OPERATIONS_WATCHED_STORE_H_
#define SERVER_OPERATIONS_WATCHED_STORE_H_

#include <memory>

#include "server/operations/metrics.h"
#include "server/operations/newest_versions.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Passes everything on to `store`, which it owns. Counted are errors that are no answer to what was asked: UNAVAILABLE,
// DEADLINE_EXCEEDED, DATA_LOSS, INTERNAL, UNKNOWN. `metrics` and `versions` outlive it.
std::unique_ptr<Store> WatchStore(std::unique_ptr<Store> store, Metrics& metrics, NewestVersions& versions);

}  // namespace routing_replay::server

#endif  // SERVER_OPERATIONS_WATCHED_STORE_H_
