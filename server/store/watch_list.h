// Who wants to know of the next change of a sample.
#ifndef SERVER_STORE_WATCH_LIST_H_
#define SERVER_STORE_WATCH_LIST_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/sample.h"
#include "server/store/store.h"

namespace routing_replay::server {

// The watches of one run. Thread-safe. Lives on while one of its watches does.
class WatchList : public std::enable_shared_from_this<WatchList> {
 public:
  // Watches sample `sample` of handle `handle`, or whichever sample has the handle where `sample` is empty. The sample
  // need not exist. Destroying the watch waits for a running callback, so a callback must not destroy its own watch.
  std::unique_ptr<Store::Watch> Add(int64_t handle, Producer producer, std::string sample,
                                    std::function<void()> changed);

  // Calls those who watch the sample and forgets them. No lock may be held.
  void Notify(int64_t handle, Producer producer, absl::string_view sample);
  // Calls those who watch any sample of the handle: something may have happened to it.
  void NotifyHandle(int64_t handle);
  // Calls everybody: the run is gone.
  void NotifyAll();

 private:
  class Entry;
  class Handle;
  using Entries = std::unordered_multimap<int64_t, std::shared_ptr<Entry>>;

  // Calls and forgets those of the handle that `concerns` gives true for.
  void NotifyThose(int64_t handle, const std::function<bool(const Entry&)>& concerns);
  void Remove(int64_t handle, const Entry* entry);

  std::atomic<int64_t> size_{0};  // Lets a change that nobody watches pass without the lock.
  Mutex mutex_;
  Entries entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_WATCH_LIST_H_
