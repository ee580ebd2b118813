// Watches of samples that any server may change. Changes by this server are notified at once; changes by others are
// found by reading the versions of watched samples.
#ifndef SERVER_STORE_REDIS_REDIS_WATCHES_H_
#define SERVER_STORE_REDIS_REDIS_WATCHES_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/mutex.h"
#include "server/store/redis/redis_context.h"
#include "server/store/store.h"

namespace routing_replay::server {

// Thread-safe.
class RedisWatches {
 public:
  // `context` must outlive it.
  explicit RedisWatches(RedisContext& context) : context_(context), thread_([this] { Work(); }) {}
  ~RedisWatches();

  // Store::WatchSample. Does not ask Redis. If nobody watched the sample recently, its last version is unknown, so the
  // first check counts as a change and `changed` is called soon.
  std::unique_ptr<Store::Watch> Add(std::shared_ptr<RedisRun> run, const SampleName& name, const std::string& key,
                                    std::function<void()> changed);
  // Reports a change that this server made. The parameters are those of RedisContext::changed.
  void Changed(RedisRun& run, const SampleName& name, const std::string& key, const std::string& version);

 private:
  using Runs = std::map<std::string, std::shared_ptr<RedisRun>>;  // By incarnation.
  struct Watched {
    std::shared_ptr<RedisRun> run;
    SampleName name;
    Clock::Time last_watched = {};
    std::optional<std::string> version = {};  // Last version that this server knows; nothing before the first check.
  };

  void Work();
  // Selects the keys to check, and forgets samples that nobody has watched for a while.
  void Choose(std::vector<std::string>& keys, Runs& runs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Look(const std::vector<std::string>& keys, const Runs& runs);

  RedisContext& context_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Watched> watched_ ABSL_GUARDED_BY(mutex_);  // By key of the manifest.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Declared last: it uses all members above.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_WATCHES_H_
