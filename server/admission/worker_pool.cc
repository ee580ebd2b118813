#include "server/admission/worker_pool.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::server {
namespace {

constexpr int32_t kRetryFullPoolMs = 500;

absl::Status Rejected(const std::string& field, absl::string_view why) {
  ErrorDetail detail{.reason = Reason::kOverBudget, .field = field};
  detail.retry_after_ms = kRetryFullPoolMs;
  return MakeError(absl::StatusCode::kResourceExhausted, absl::StrCat(field, ": ", why), detail);
}

}  // namespace

void WorkerPool::Finish() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    finishing_ = true;
    threads.swap(threads_);
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads) thread.join();
}

absl::Status WorkerPool::Run(const std::string& owner, std::function<void()> work) {
  MutexLock lock(mutex_);
  if (finishing_) {
    return MakeError(absl::StatusCode::kUnavailable, "the server is shutting down", {.reason = Reason::kDraining});
  }
  Owner& own = owners_[owner];
  if (own.waiting.size() >= limits_.waiting_of_an_owner) {
    return Rejected(limits_.field,
                    absl::StrCat(own.waiting.size(),
                                 " calls of this caller (its token, or its connection if there are "
                                 "no tokens) already wait for a thread; make fewer at a time, or try again "
                                 "later"));
  }
  own.waiting.push_back(std::move(work));
  if (++waiting_ > idle_ && threads_.size() < limits_.threads && !AddThread() && threads_.empty()) {
    owners_.clear();  // There is no thread, so no other work can be waiting.
    waiting_ = 0;
    return Rejected(limits_.field, "the system cannot start a thread (process limit, or no memory); try again later");
  }
  changed_.NotifyOne();
  return absl::OkStatus();
}

bool WorkerPool::AddThread() {
  try {
    threads_.emplace_back([this] { Work(); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

WorkerPool::Owners::iterator WorkerPool::Next() {
  const auto may_begin = [this](const auto& entry) { return MayBegin(entry.second); };
  const auto after = owners_.upper_bound(last_);
  const auto found = std::find_if(after, owners_.end(), may_begin);
  if (found != owners_.end()) return found;
  const auto before = std::find_if(owners_.begin(), after, may_begin);
  return before == after ? owners_.end() : before;
}

void WorkerPool::Work() {
  pthread_setname_np(pthread_self(), "call-worker");
  while (std::optional<Taken> taken = Take()) {
    taken->work();
    taken->work = nullptr;
    End(taken->owner);
  }
}

std::optional<WorkerPool::Taken> WorkerPool::Take() {
  MutexLock lock(mutex_);
  auto next = Next();
  for (; next == owners_.end(); next = Next()) {
    if (finishing_) return std::nullopt;
    ++idle_;
    changed_.Wait(mutex_);
    --idle_;
  }
  auto& [name, owner] = *next;
  last_ = name;
  Taken taken{.owner = name, .work = std::move(owner.waiting.front())};
  owner.waiting.pop_front();
  ++owner.working;
  --waiting_;
  return taken;
}

void WorkerPool::End(const std::string& owner) {
  MutexLock lock(mutex_);
  const auto found = owners_.find(owner);
  if (--found->second.working == 0 && found->second.waiting.empty()) owners_.erase(found);
}

}  // namespace routing_replay::server
