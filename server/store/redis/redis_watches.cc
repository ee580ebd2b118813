#include "server/store/redis/redis_watches.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace routing_replay::server {
namespace {

// A reader that waits sets up a watch after each change: its channels are kept in between, for a channel that is opened
// anew fires.
constexpr std::chrono::seconds kKeptUnused{10};

// Whoever may have missed something.
void NotifyAllOf(const std::vector<std::shared_ptr<RedisRun>>& runs, std::optional<int64_t> handle) {
  for (const std::shared_ptr<RedisRun>& run : runs) {
    if (handle) {
      run->watches->NotifyHandle(*handle);
    } else {
      run->watches->NotifyAll();
    }
  }
}

}  // namespace

class RedisWatches::Handle final : public Store::Watch {
 public:
  Handle(RedisWatches& watches, std::shared_ptr<RedisRun> run, std::vector<std::string> channels,
         std::unique_ptr<Store::Watch> watch)
      : watches_(watches), run_(std::move(run)), channels_(std::move(channels)), watch_(std::move(watch)) {}
  ~Handle() override {
    watch_.reset();
    for (const std::string& channel : channels_) watches_.Close(channel, run_);
  }

 private:
  RedisWatches& watches_;
  const std::shared_ptr<RedisRun> run_;
  const std::vector<std::string> channels_;
  std::unique_ptr<Store::Watch> watch_;
};

RedisWatches::RedisWatches(RedisContext& context) : context_(context) {
  subscriber_ = RedisSubscriber::Start(*context.cluster, [this](const RedisEvent& event) { OnEvent(event); });
  worker_ = std::thread([this] { Work(); });
}

RedisWatches::~RedisWatches() {
  subscriber_.reset();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  worker_.join();
}

std::unique_ptr<Store::Watch> RedisWatches::Add(std::shared_ptr<RedisRun> run, const SampleName& name,
                                                std::function<void()> changed) {
  std::vector<std::string> channels = {RedisSampleKeys(context_.keys, run->life, name.handle).Channel(),
                                       context_.keys.RunChannel(run->info.run)};
  std::unique_ptr<Store::Watch> watch = run->watches->Add(name.handle, name.producer, name.sample, std::move(changed));
  Open(channels[0], run, name.handle);
  Open(channels[1], run, std::nullopt);
  return std::make_unique<Handle>(*this, std::move(run), std::move(channels), std::move(watch));
}

void RedisWatches::Open(const std::string& name, const std::shared_ptr<RedisRun>& run, std::optional<int64_t> handle) {
  MutexLock lock(mutex_);
  const auto [it, added] = channels_.try_emplace(name);
  it->second.handle = handle;
  ++it->second.users[run];
  if (added) subscriber_->Subscribe(name);
}

void RedisWatches::Close(const std::string& name, const std::shared_ptr<RedisRun>& run) {
  MutexLock lock(mutex_);
  Channel& channel = channels_.at(name);
  const auto user = channel.users.find(run);
  if (--user->second > 0) return;
  channel.users.erase(user);
  if (channel.users.empty()) channel.unused_since = Clock::Real().Now();
}

Clock::Time RedisWatches::CloseUnused() {
  const Clock::Time now = Clock::Real().Now();
  for (auto it = channels_.begin(); it != channels_.end();) {
    const Channel& channel = it->second;
    if (!channel.users.empty() || now - channel.unused_since < kKeptUnused) {
      ++it;
    } else {
      subscriber_->Unsubscribe(it->first);
      it = channels_.erase(it);
    }
  }
  return now + kKeptUnused;
}

// On the subscriber's thread, which must not wait: watchers are called by the worker.
void RedisWatches::OnEvent(const RedisEvent& event) {
  MutexLock lock(mutex_);
  const auto it = channels_.find(event.channel);
  if (it == channels_.end()) return;
  Channel& channel = it->second;
  std::vector<std::shared_ptr<RedisRun>> runs;
  for (const auto& [run, users] : channel.users) runs.push_back(run);
  if (!event.message) {
    calls_.push_back([runs = std::move(runs), handle = channel.handle] { NotifyAllOf(runs, handle); });
    changed_.NotifyAll();
    return;
  }
  const std::vector<std::string> words = absl::StrSplit(*event.message, ' ');
  int producer = 0;
  if (words.size() != 3 || words[0] == context_.server || !absl::SimpleAtoi(words[1], &producer)) return;
  calls_.push_back([runs = std::move(runs), handle = channel.handle, producer, what = words[2]] {
    for (const std::shared_ptr<RedisRun>& run : runs) {
      if (handle) {
        run->watches->Notify(*handle, static_cast<Producer>(producer), what);
      } else if (run->life == what) {
        run->ended = true;
        run->watches->NotifyAll();
      }
    }
  });
  changed_.NotifyAll();
}

void RedisWatches::Work() {
  Clock::Time look = Clock::Real().Now();
  for (;;) {
    std::function<void()> call;
    {
      MutexLock lock(mutex_);
      while (calls_.empty() && !stopping_) {
        if (Clock::Real().Now() >= look) look = CloseUnused();
        changed_.WaitUntil(mutex_, look);
      }
      if (stopping_) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    call();
  }
}

}  // namespace routing_replay::server
