#include "server/store/redis/redis_watches.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace routing_replay {
namespace {

constexpr std::chrono::seconds kHearing{2};

}  // namespace

class RedisWatches::Handle final : public Store::Watch {
 public:
  Handle(RedisWatches& watches, std::vector<std::string> channels, std::unique_ptr<Store::Watch> watch)
      : watches_(watches), channels_(std::move(channels)), watch_(std::move(watch)) {}
  ~Handle() override {
    watch_.reset();
    for (const std::string& channel : channels_) watches_.Close(channel);
  }

 private:
  RedisWatches& watches_;
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
  for (const std::string& channel : channels) AwaitHeard(channel);
  return std::make_unique<Handle>(*this, std::move(channels), std::move(watch));
}

void RedisWatches::Open(const std::string& name, std::shared_ptr<RedisRun> run, std::optional<int64_t> handle) {
  MutexLock lock(mutex_);
  Channel& channel = channels_[name];
  channel.run = std::move(run);
  channel.handle = handle;
  if (++channel.users == 1) subscriber_->Subscribe(name);
}

void RedisWatches::Close(const std::string& name) {
  MutexLock lock(mutex_);
  const auto it = channels_.find(name);
  if (--it->second.users > 0) return;
  channels_.erase(it);
  subscriber_->Unsubscribe(name);
}

void RedisWatches::AwaitHeard(const std::string& name) {
  const Clock::Time deadline = Clock::Real().Now() + kHearing;
  MutexLock lock(mutex_);
  Channel& channel = channels_.at(name);
  while (!channel.heard) {
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    channel.late = true;
    return;
  }
}

// On the subscriber's thread, which must not wait: watchers are called by the worker.
void RedisWatches::OnEvent(const RedisEvent& event) {
  MutexLock lock(mutex_);
  const auto it = channels_.find(event.channel);
  if (it == channels_.end()) return;
  Channel& channel = it->second;
  const std::shared_ptr<RedisRun> run = channel.run;
  if (!event.message) {
    const bool missed = channel.heard || channel.late;
    channel.heard = true;
    changed_.NotifyAll();
    if (!missed) return;
    calls_.push_back([run, handle = channel.handle] {
      if (handle) {
        run->watches->NotifyHandle(*handle);
      } else {
        run->watches->NotifyAll();
      }
    });
    return;
  }
  const std::vector<std::string> words = absl::StrSplit(*event.message, ' ');
  int producer = 0;
  if (words.size() != 3 || words[0] == context_.server || !absl::SimpleAtoi(words[1], &producer)) return;
  if (channel.handle) {
    calls_.push_back([run, handle = *channel.handle, producer, sample = words[2]] {
      run->watches->Notify(handle, static_cast<Producer>(producer), sample);
    });
  } else {
    calls_.push_back([run, life = words[2]] {
      if (run->life != life) return;
      run->ended = true;
      run->watches->NotifyAll();
    });
  }
  changed_.NotifyAll();
}

void RedisWatches::Work() {
  for (;;) {
    std::function<void()> call;
    {
      MutexLock lock(mutex_);
      while (calls_.empty() && !stopping_) changed_.Wait(mutex_);
      if (stopping_) return;
      call = std::move(calls_.front());
      calls_.pop_front();
    }
    call();
  }
}

}  // namespace routing_replay
