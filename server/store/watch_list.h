// Callbacks that are called at the next change of a sample.
#ifndef SERVER_STORE_WATCH_LIST_H_
#define SERVER_STORE_WATCH_LIST_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "proto/wire/mutex.h"
#include "routing_replay/wire/sample.h"
#include "server/store/store.h"

namespace routing_replay::server {

// The watches of one run. Thread-safe. Each watch keeps the list alive.
class WatchList : public std::enable_shared_from_this<WatchList> {
 public:
  // Watches the sample of `producer` with this handle; it need not exist yet. Destroying the watch waits for a running
  // callback, so a callback must not destroy its own watch.
  std::unique_ptr<Store::Watch> Add(int64_t handle, Producer producer, std::function<void()> changed);

  // True if a watch of the sample has not been called yet.
  bool Has(int64_t handle, Producer producer) const;
  // Calls and removes the watches of the sample. No lock may be held.
  void Notify(int64_t handle, Producer producer);
  // Calls all watches: the run is gone.
  void NotifyAll();

 private:
  class Entry;
  class Handle;
  using Key = std::pair<int64_t, Producer>;
  using Entries = std::multimap<Key, std::shared_ptr<Entry>>;

  void Remove(const Key& key, const Entry* entry);

  std::atomic<int64_t> size_{0};  // Size of entries_. If it is 0, Notify need not take the lock.
  mutable Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_WATCH_LIST_H_
