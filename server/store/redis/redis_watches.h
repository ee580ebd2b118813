// Watches of samples that any server may change: changes in this server are told by it at once, those in others come
// over the samples' channels.
#ifndef SERVER_STORE_REDIS_REDIS_WATCHES_H_
#define SERVER_STORE_REDIS_REDIS_WATCHES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "proto/wire/mutex.h"
#include "server/store/redis/client/redis_subscriber.h"
#include "server/store/redis/redis_context.h"
#include "server/store/redis/redis_run.h"
#include "server/store/sample/sample_rules.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Thread-safe. Outlives its watches.
class RedisWatches {
 public:
  // `context` outlives it.
  explicit RedisWatches(RedisContext& context);
  ~RedisWatches();

  // Store::WatchSample. Never waits: if the sample's channels are not heard yet, the watch fires as soon as they are,
  // as it does whenever messages may have been missed.
  std::unique_ptr<Store::Watch> Add(std::shared_ptr<RedisRun> run, const SampleName& name,
                                    std::function<void()> changed);

 private:
  class Handle;
  struct Channel {
    std::map<std::shared_ptr<RedisRun>, int> users;  // All lives of the run that are watched, and by how many.
    std::optional<int64_t> handle;                   // Nothing: of the whole run.
    Clock::Time unused_since;                        // Of one without users.
  };

  void Open(const std::string& name, const std::shared_ptr<RedisRun>& run, std::optional<int64_t> handle);
  void Close(const std::string& name, const std::shared_ptr<RedisRun>& run);
  void OnEvent(const RedisEvent& event);
  void Work();
  // Leaves channels that nobody has used for a while, and says when to look again.
  Clock::Time CloseUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  RedisContext& context_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Channel> channels_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> calls_ ABSL_GUARDED_BY(mutex_);  // For the worker, who may wait.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<RedisSubscriber> subscriber_;
  std::thread worker_;
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_WATCHES_H_
