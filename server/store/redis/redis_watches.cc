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
  if (watched.run != run) watched = {.run = std::move(run), .name = name};
  watched.last_watched = Clock::Real().Now();
  changed_.NotifyAll();
  return watch;
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
  for (auto& [key, watched] : watched_) {
    if (!watched.run->watches->Has(watched.name.handle, watched.name.producer)) continue;
    watched.last_watched = now;
    keys.push_back(key);
    runs[watched.run->incarnation] = watched.run;
  }
  std::erase_if(watched_, [&](const auto& entry) { return now - entry.second.last_watched >= kKeptUnused; });
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
