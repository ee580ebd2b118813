#include "server/store/redis/redis_watches.h"

#include <algorithm>
#include <utility>

#include "server/store/store_time.h"

namespace routing_replay::server {
namespace {

// The pause between two checks. After a slow check it is longer: nine times as long as the check took, so that checks
// take at most a tenth of the time.
constexpr std::chrono::milliseconds kBetweenLooks{20};
constexpr std::chrono::seconds kLookTimeout{2};
// How long the last version of a sample is kept after its last watch: a waiting reader registers a new watch after each
// change.
constexpr std::chrono::seconds kKeptUnused{10};

}  // namespace

class RedisWatches::Handle final : public Store::Watch {
 public:
  Handle(RedisWatches& watches, std::shared_ptr<RedisRun> run, std::string key, std::unique_ptr<Store::Watch> watch)
      : watches_(watches), run_(std::move(run)), key_(std::move(key)), watch_(std::move(watch)) {}
  ~Handle() override {
    watch_.reset();
    MutexLock lock(watches_.mutex_);
    const auto found = watches_.watched_.find(key_);
    if (found == watches_.watched_.end() || found->second.run != run_) return;
    if (--found->second.users == 0) found->second.unused_since = Clock::Real().Now();
  }

 private:
  RedisWatches& watches_;
  const std::shared_ptr<RedisRun> run_;
  const std::string key_;
  std::unique_ptr<Store::Watch> watch_;
};

RedisWatches::~RedisWatches() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

std::unique_ptr<Store::Watch> RedisWatches::Add(std::shared_ptr<RedisRun> run, const SampleName& name,
                                                const std::string& key, std::function<void()> changed) {
  auto watch = run->watches->Add(name.handle, name.producer, std::move(changed));
  MutexLock lock(mutex_);
  Watched& watched = watched_[key];
  if (watched.run != run) watched = {.run = run, .name = name};
  ++watched.users;
  changed_.NotifyAll();
  return std::make_unique<Handle>(*this, std::move(run), key, std::move(watch));
}

void RedisWatches::Changed(RedisRun& run, const SampleName& name, const std::string& key, const std::string& version) {
  {
    MutexLock lock(mutex_);
    if (const auto found = watched_.find(key); found != watched_.end()) found->second.version = version;
  }
  run.watches->Notify(name.handle, name.producer);
}

void RedisWatches::Work() {
  for (;;) {
    std::vector<std::string> keys;
    Runs runs;
    {
      MutexLock lock(mutex_);
      Choose(keys, runs);
      while (keys.empty() && !stopping_) {
        changed_.Wait(mutex_);
        Choose(keys, runs);
      }
      if (stopping_) return;
    }
    const Clock::Time begin = Clock::Real().Now();
    Look(keys, runs);
    const Clock::Time end = Clock::Real().Now();
    const Clock::Time next = end + std::max<Clock::Duration>(kBetweenLooks, 9 * (end - begin));
    MutexLock lock(mutex_);
    while (!stopping_ && Clock::Real().Now() < next) changed_.WaitUntil(mutex_, next);
  }
}

void RedisWatches::Choose(std::vector<std::string>& keys, Runs& runs) {
  const Clock::Time now = Clock::Real().Now();
  std::erase_if(watched_, [&](const auto& entry) {
    return entry.second.users == 0 && now - entry.second.unused_since >= kKeptUnused;
  });
  for (const auto& [key, watched] : watched_) {
    if (watched.users == 0) continue;
    keys.push_back(key);
    runs[watched.run->incarnation] = watched.run;
  }
}

void RedisWatches::Look(const std::vector<std::string>& keys, const Runs& runs) {
  std::vector<RedisRequest> requests;
  for (const std::string& key : keys) requests.push_back(RedisContext::Of(RedisCommand({"HGET", key, "v"})));
  for (const auto& [incarnation, run] : runs) requests.push_back(context_.AskForRun(*run));
  const CallDeadline deadline(Clock::Real().Now() + kLookTimeout);
  const std::vector<RedisResult> results = context_.Execute(requests);
  std::vector<Watched> changes;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto found = watched_.find(keys[i]);
      if (found == watched_.end() || !results[i].reply.ok()) continue;
      if (found->second.version == results[i].reply->text) continue;
      found->second.version = results[i].reply->text;
      changes.push_back(found->second);
    }
  }
  for (const Watched& one : changes) one.run->watches->Notify(one.name.handle, one.name.producer);
  size_t i = keys.size();
  for (const auto& [incarnation, run] : runs) {
    const absl::StatusOr<RedisReply>& reply = results[i++].reply;
    if (!reply.ok() || reply->text == incarnation) continue;
    run->ended = true;
    run->watches->NotifyAll();
  }
}

}  // namespace routing_replay::server
