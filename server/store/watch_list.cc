#include "server/store/watch_list.h"

#include <utility>

namespace routing_replay::server {

class WatchList::Entry {
 public:
  Entry(Producer producer, std::string sample, std::function<void()> changed)
      : producer_(producer), sample_(std::move(sample)), changed_(std::move(changed)) {}

  bool Concerns(Producer producer, absl::string_view sample) const {
    return producer_ == producer && (sample_.empty() || sample_ == sample);
  }

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

  const Producer producer_;
  const std::string sample_;
  const std::function<void()> changed_;
  Mutex mutex_;
  CondVar done_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kWaiting;
};

class WatchList::Handle final : public Store::Watch {
 public:
  Handle(std::shared_ptr<WatchList> list, int64_t handle, std::shared_ptr<Entry> entry)
      : list_(std::move(list)), handle_(handle), entry_(std::move(entry)) {}
  ~Handle() override {
    list_->Remove(handle_, entry_.get());
    entry_->Cancel();
  }

 private:
  const std::shared_ptr<WatchList> list_;
  const int64_t handle_;
  const std::shared_ptr<Entry> entry_;
};

std::unique_ptr<Store::Watch> WatchList::Add(int64_t handle, Producer producer, std::string sample,
                                             std::function<void()> changed) {
  auto entry = std::make_shared<Entry>(producer, std::move(sample), std::move(changed));
  {
    MutexLock lock(mutex_);
    entries_.emplace(handle, entry);
    ++size_;
  }
  return std::make_unique<Handle>(shared_from_this(), handle, std::move(entry));
}

// Reading size_ without the lock misses no watch that matters: whoever registered and then looked at the sample before
// this change did both before it under the sample's lock.
void WatchList::Notify(int64_t handle, Producer producer, absl::string_view sample) {
  NotifyThose(handle, [&](const Entry& entry) { return entry.Concerns(producer, sample); });
}

void WatchList::NotifyHandle(int64_t handle) {
  NotifyThose(handle, [](const Entry&) { return true; });
}

void WatchList::NotifyThose(int64_t handle, const std::function<bool(const Entry&)>& concerns) {
  if (size_ == 0) return;
  std::vector<std::shared_ptr<Entry>> concerned;
  {
    MutexLock lock(mutex_);
    auto [it, end] = entries_.equal_range(handle);
    while (it != end) {
      if (!concerns(*it->second)) {
        ++it;
        continue;
      }
      concerned.push_back(std::move(it->second));
      it = entries_.erase(it);
    }
    size_ -= static_cast<int64_t>(concerned.size());
  }
  for (const auto& entry : concerned) entry->Fire();
}

void WatchList::NotifyAll() {
  Entries all;
  {
    MutexLock lock(mutex_);
    all.swap(entries_);
    size_ = 0;
  }
  for (const auto& [handle, entry] : all) entry->Fire();
}

void WatchList::Remove(int64_t handle, const Entry* entry) {
  std::shared_ptr<Entry> removed;  // The callback is destroyed outside the lock.
  MutexLock lock(mutex_);
  auto [it, end] = entries_.equal_range(handle);
  while (it != end && it->second.get() != entry) ++it;
  if (it == end) return;
  removed = std::move(it->second);
  entries_.erase(it);
  --size_;
}

}  // namespace routing_replay::server
