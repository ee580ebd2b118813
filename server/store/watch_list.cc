#include "server/store/watch_list.h"

#include <utility>

namespace routing_replay::server {

class WatchList::Entry {
 public:
  explicit Entry(std::function<void()> changed) : changed_(std::move(changed)) {}

  void Fire() {
    {
      MutexLock lock(mutex_);
      if (state_ != State::kWaiting) return;
      state_ = State::kRunning;
    }
    changed_();
    MutexLock lock(mutex_);
    state_ = State::kDone;
    done_.NotifyAll();
  }

  // Afterwards the callback is not running and will not run.
  void Cancel() {
    MutexLock lock(mutex_);
    while (state_ == State::kRunning) done_.Wait(mutex_);
    state_ = State::kDone;
  }

 private:
  enum class State { kWaiting, kRunning, kDone };

  const std::function<void()> changed_;
  Mutex mutex_;
  CondVar done_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kWaiting;
};

class WatchList::Handle final : public Store::Watch {
 public:
  Handle(std::shared_ptr<WatchList> list, const Key& key, std::shared_ptr<Entry> entry)
      : list_(std::move(list)), key_(key), entry_(std::move(entry)) {}
  ~Handle() override {
    list_->Remove(key_, entry_.get());
    entry_->Cancel();
  }

 private:
  const std::shared_ptr<WatchList> list_;
  const Key key_;
  const std::shared_ptr<Entry> entry_;
};

std::unique_ptr<Store::Watch> WatchList::Add(int64_t handle, Producer producer, std::function<void()> changed) {
  const Key key{handle, producer};
  auto entry = std::make_shared<Entry>(std::move(changed));
  {
    MutexLock lock(mutex_);
    entries_.emplace(key, entry);
    ++size_;
  }
  return std::make_unique<Handle>(shared_from_this(), key, std::move(entry));
}

bool WatchList::Has(int64_t handle, Producer producer) const {
  MutexLock lock(mutex_);
  return entries_.contains({handle, producer});
}

// Reading size_ without the lock misses no relevant watch. A reader first registers its watch and then reads the sample
// under the sample's lock. So if it read the sample before the change that is notified here, its watch was registered
// before that change took the lock.
void WatchList::Notify(int64_t handle, Producer producer) {
  if (size_ == 0) return;
  Entries concerned;
  {
    MutexLock lock(mutex_);
    auto [it, end] = entries_.equal_range({handle, producer});
    while (it != end) concerned.insert(entries_.extract(it++));
    size_ -= static_cast<int64_t>(concerned.size());
  }
  for (const auto& [key, entry] : concerned) entry->Fire();
}

void WatchList::NotifyAll() {
  Entries all;
  {
    MutexLock lock(mutex_);
    all.swap(entries_);
    size_ = 0;
  }
  for (const auto& [key, entry] : all) entry->Fire();
}

void WatchList::Remove(const Key& key, const Entry* entry) {
  std::shared_ptr<Entry> removed;  // The callback is destroyed outside the lock.
  MutexLock lock(mutex_);
  auto [it, end] = entries_.equal_range(key);
  while (it != end && it->second.get() != entry) ++it;
  if (it == end) return;
  removed = std::move(it->second);
  entries_.erase(it);
  --size_;
}

}  // namespace routing_replay::server
