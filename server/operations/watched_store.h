// A store that counts what goes wrong in it, and notes the weight versions that pass.
#ifndef SERVER_OPERATIONS_WATCHED_STORE_H_
#define SERVER_OPERATIONS_WATCHED_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "server/operations/metrics.h"
#include "server/store/store.h"

namespace routing_replay {

// The highest weight versions since the start, of all runs; kUnknownWeightVersion: none. Thread-safe.
class NewestVersions {
 public:
  int64_t put() const { return put_.load(std::memory_order_relaxed); }
  int64_t get() const { return get_.load(std::memory_order_relaxed); }
  void Put(int64_t version) { Raise(put_, version); }
  void Get(int64_t version) { Raise(get_, version); }

 private:
  static void Raise(std::atomic<int64_t>& newest, int64_t version) {
    int64_t known = newest.load(std::memory_order_relaxed);
    while (known < version && !newest.compare_exchange_weak(known, version, std::memory_order_relaxed)) {
    }
  }

  std::atomic<int64_t> put_{kUnknownWeightVersion};
  std::atomic<int64_t> get_{kUnknownWeightVersion};
};

// Passes everything on to `store`, which it owns. Counted are errors that are no answer to what was asked: UNAVAILABLE,
// DEADLINE_EXCEEDED, DATA_LOSS, INTERNAL, UNKNOWN. `metrics` and `versions` outlive it.
std::unique_ptr<Store> WatchStore(std::unique_ptr<Store> store, Metrics& metrics, NewestVersions& versions);

}  // namespace routing_replay

#endif  // SERVER_OPERATIONS_WATCHED_STORE_H_
