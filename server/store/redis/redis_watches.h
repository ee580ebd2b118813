// Watches of samples that any server may change: changes made here are told at once, those of other servers are found
// by asking for the versions of what is watched.
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

// Thread-safe. Outlives its watches.
class RedisWatches {
 public:
  // `context` outlives it.
  explicit RedisWatches(RedisContext& context) : context_(context), thread_([this] { Work(); }) {}
  ~RedisWatches();

  // Store::WatchSample. Never waits. The watch of a sample that nobody watched lately is called soon, since it is not
  // known what the sample was before.
  std::unique_ptr<Store::Watch> Add(std::shared_ptr<RedisRun> run, const SampleName& name, const std::string& key,
                                    std::function<void()> changed);
  // A change by this server, as RedisContext::changed.
  void Changed(RedisRun& run, const SampleName& name, const std::string& key, const std::string& version);

 private:
  class Handle;
  using Runs = std::map<std::string, std::shared_ptr<RedisRun>>;  // By incarnation.
  struct Watched {
    std::shared_ptr<RedisRun> run;
    SampleName name;
    int users = 0;
    Clock::Time unused_since = {};
    std::optional<std::string> version = {};  // As seen last.
  };

  void Work();
  // What is watched; what nobody has watched for a while is forgotten.
  void Choose(std::vector<std::string>& keys, Runs& runs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Look(const std::vector<std::string>& keys, const Runs& runs);

  RedisContext& context_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Watched> watched_ ABSL_GUARDED_BY(mutex_);  // By key of the manifest.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace routing_replay::server

#endif  // SERVER_STORE_REDIS_REDIS_WATCHES_H_
