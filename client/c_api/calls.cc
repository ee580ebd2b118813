#include "client/c_api/calls.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "client/call/cancellation.h"
#include "client/call/fork_part.h"
#include "proto/wire/mutex.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::c_api {

using client::Cancellation;

namespace {

constexpr std::chrono::seconds kIdle(5);
// At most this many calls run at a time; further ones wait for a thread. A cluster may allow a pod 4,096 threads.
constexpr size_t kMost = 1024;

void JoinAll(std::list<std::thread> threads) {
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

Threads& Threads::Shared() {
  static Threads* const threads = new Threads;
  return *threads;
}

bool Threads::Run(Work& work) {
  {
    MutexLock lock(mutex_);
    const bool more = !resting_ && waiting_.size() >= idle_ && running_.size() < kMost;
    if (!(more && Start()) && running_.empty() && !resting_) return false;
    waiting_.emplace(next_++, std::move(work));
  }
  work_.NotifyOne();  // Notify after the lock is released, because the woken thread would have to wait for it.
  return true;
}

bool Threads::Start() {
  const auto self = running_.emplace(running_.end());
  try {
    *self = std::thread([this, self] { Loop(self); });
  } catch (const std::system_error&) {
    running_.erase(self);
    return false;
  }
  return true;
}

void Threads::Loop(Running::iterator self) {
  while (true) {
    uint64_t place = 0;
    Work next;
    {
      MutexLock lock(mutex_);
      const Clock::Time end = Clock::Real().Now() + kIdle;
      ++idle_;
      while (waiting_.empty() && !resting_ && Clock::Real().Now() < end) work_.WaitUntil(mutex_, end);
      --idle_;
      if (waiting_.empty() || resting_) break;
      auto first = waiting_.extract(waiting_.begin());
      place = first.key();
      next = std::move(first.mapped());
    }
    if (next()) continue;
    MutexLock lock(mutex_);
    waiting_.emplace(place, std::move(next));
  }
  Running before;
  {
    MutexLock lock(mutex_);
    before = std::exchange(gone_, {});
    gone_.splice(gone_.end(), running_, self);
    ended_.NotifyAll();
  }
  JoinAll(std::move(before));
}

void Threads::Rest() {
  MutexLock lock(mutex_);
  resting_ = true;
  work_.NotifyAll();
}

bool Threads::AwaitRest(Clock::Time deadline) {
  Running last;
  {
    MutexLock lock(mutex_);
    while (!running_.empty() && Clock::Real().Now() < deadline) ended_.WaitUntil(mutex_, deadline);
    if (!running_.empty()) return false;
    last = std::exchange(gone_, {});
  }
  JoinAll(std::move(last));
  return true;
}

void Threads::GoOn() {
  MutexLock lock(mutex_);
  resting_ = false;
  while (running_.size() < waiting_.size() && running_.size() < kMost && Start()) {
  }
}

void Threads::BeginAnew() {
  std::map<uint64_t, Work> never;
  MutexLock lock(mutex_);
  resting_ = false;
  never = std::exchange(waiting_, {});
}

// The calls in progress, and the completions of earlier calls. Thread-safe. Not in the unnamed namespace: in a unity
// build, GCC warns of classes with members from there.
class Queue final : private client::ForkPart {
 public:
  Queue() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Queue() {
    for (const rr_ended& ended : ended_) rr_free(ended.error);
    if (descriptor_ >= 0) close(descriptor_);
  }

  int descriptor() const { return descriptor_; }

  absl::Status Begin(uint64_t tag, std::shared_ptr<Cancellation> cancellation) {
    MutexLock lock(mutex_);
    if (closed_) return absl::FailedPreconditionError("the queue is being freed");
    if (under_way_.emplace(tag, std::move(cancellation)).second) return absl::OkStatus();
    return Invalid("tag", absl::StrCat(tag, " is already in use by a call in progress"));
  }

  void End(uint64_t tag, const rr_error* error) {
    {
      MutexLock lock(mutex_);
      under_way_.erase(tag);
      ended_.push_back({tag, error});
      if (!waiting_) Signal();
    }
    changed_.NotifyAll();
  }

  size_t Take(absl::Span<rr_ended> ended) {
    MutexLock lock(mutex_);
    size_t taken = 0;
    for (; taken < ended.size() && !ended_.empty(); ++taken) {
      ended[taken] = ended_.front();
      ended_.pop_front();
    }
    Unsignal();
    return taken;
  }

  // Waits for one completion; returns false if there is none by the deadline. Only one thread may call this at a time.
  // This is cheaper than polling the descriptor, which does not change for a completion that arrives meanwhile.
  bool Wait(Clock::Time deadline, rr_ended& ended) {
    const Gate::Outside outside;
    MutexLock lock(mutex_);
    waiting_ = true;
    while (ended_.empty() && Clock::Real().Now() < deadline) changed_.WaitUntil(mutex_, deadline);
    waiting_ = false;
    if (ended_.empty()) return false;
    ended = ended_.front();
    ended_.pop_front();
    ended_.empty() ? Unsignal() : Signal();
    return true;
  }

  void Cancel(uint64_t tag) {
    std::shared_ptr<Cancellation> cancellation;
    {
      MutexLock lock(mutex_);
      const auto at = under_way_.find(tag);
      if (at == under_way_.end()) return;
      cancellation = at->second;
    }
    cancellation->Cancel();
  }

  void Close() {
    std::map<uint64_t, std::shared_ptr<Cancellation>> open;
    {
      MutexLock lock(mutex_);
      closed_ = true;
      open = under_way_;
    }
    for (const auto& [tag, cancellation] : open) cancellation->Cancel();
    const Gate::Outside outside;
    MutexLock lock(mutex_);
    while (!under_way_.empty()) changed_.Wait(mutex_);
  }

 private:
  // Makes a new lock and condition: a thread of the parent may have been waiting on them when the process forked, for
  // example to free the queue. That thread does not exist in the child.
  void BeginAnew() override {
    std::construct_at(&mutex_);
    std::construct_at(&changed_);
    if (const int own = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); own >= 0) {
      dup3(own, descriptor_, O_CLOEXEC);
      close(own);
    }
    MutexLock lock(mutex_);
    waiting_ = signalled_ = false;
    under_way_.clear();
    for (const rr_ended& ended : std::exchange(ended_, {})) rr_free(ended.error);
  }

  void Signal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const uint64_t one = 1;
    if (!std::exchange(signalled_, true)) (void)!write(descriptor_, &one, sizeof(one));
  }
  void Unsignal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    uint64_t count = 0;
    if (ended_.empty() && std::exchange(signalled_, false)) (void)!read(descriptor_, &count, sizeof(count));
  }

  const int descriptor_;
  Mutex mutex_;
  CondVar changed_;  // A call has ended.
  std::map<uint64_t, std::shared_ptr<Cancellation>> under_way_ ABSL_GUARDED_BY(mutex_);
  std::deque<rr_ended> ended_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool signalled_ ABSL_GUARDED_BY(mutex_) = false;  // The descriptor is readable.
};

namespace {

// Runs `work` once. Returns nothing if a fork has interrupted it: then it must run again.
std::optional<CallEnd> TryDo(const std::function<CallEnd()>& work, Cancellation& cancellation) {
  const Gate::Breakable breakable(cancellation);
  const client::CallScope scope(&cancellation);
  CallEnd end = WithoutExceptions([&]() -> CallEnd {
    RR_RETURN_IF_ERROR(client::CheckCall());
    return work();
  });
  if (!end.status.ok() && cancellation.cancelled()) return CallEnd(absl::CancelledError("the call was cancelled"));
  // A flush reports failures only once, so its result must not be replaced by CANCELLED.
  if (!end.status.ok() && cancellation.broken_off() && end.failures.appends == 0) return std::nullopt;
  return end;
}

// Runs `work` on the caller's thread, again after each fork that interrupts it.
CallEnd Do(const std::function<CallEnd()>& work, Cancellation& cancellation) {
  while (true) {
    if (std::optional<CallEnd> end = TryDo(work, cancellation)) return *std::move(end);
    cancellation.Renew();
    const Gate::Outside until_it_opens;
  }
}

}  // namespace

}  // namespace routing_replay::c_api

using namespace routing_replay;         // NOLINT(build/namespaces): this file defines functions outside of it.
using namespace routing_replay::c_api;  // NOLINT(build/namespaces)

struct rr_queue final : GatedObject {
  ~rr_queue() override { queue->Close(); }

  const std::shared_ptr<Queue> queue = std::make_shared<Queue>();
};

CallEnd routing_replay::c_api::Perform(const rr_call* call, std::function<CallEnd()> work, Timeout timeout,
                                       const std::function<std::optional<CallEnd>()>& at_once) {
  std::optional<Clock::Time> deadline;
  if (call != nullptr && call->timeout_ms >= 0 && timeout == Timeout::kOfCall) {
    deadline = DeadlineAfter(Clock::Real().Now(), std::chrono::milliseconds(call->timeout_ms));
  }
  const auto cancellation = std::make_shared<Cancellation>(deadline);
  if (call == nullptr || call->queue == nullptr) return Do(work, *cancellation);
  const std::shared_ptr<Queue> queue = call->queue->queue;
  RR_RETURN_IF_ERROR(queue->Begin(call->tag, cancellation));
  if (at_once) {
    std::optional<CallEnd> ended;
    const CallEnd asked = WithoutExceptions([&] {
      ended = at_once();
      return CallEnd();
    });
    if (!asked.status.ok()) ended = asked;
    if (ended) {
      queue->End(call->tag, NewError(*ended));
      return absl::OkStatus();
    }
  }
  Threads::Work on_thread = [work = std::move(work), cancellation, queue, tag = call->tag]() mutable {
    const std::optional<CallEnd> end = TryDo(work, *cancellation);
    if (!end) {
      cancellation->Renew();
      return false;
    }
    const rr_error* error = NewError(*end);
    work = nullptr;  // Destroys the work, with the objects that it holds, before the completion is reported.
    queue->End(tag, error);
    return true;
  };
  while (!Threads::Shared().Run(on_thread) && !on_thread()) {
  }
  return absl::OkStatus();
}

CallEnd routing_replay::c_api::PerformInOrder(
    const rr_call* call, client::CallOrder& order, Mutex& calling,
    std::function<CallEnd(std::shared_ptr<const client::CallOrder::Place>)> work) {
  if (call == nullptr || call->queue == nullptr) {
    return Perform(
        call, [&] { return work(order.Take()); }, Timeout::kOfWork);
  }
  MutexLock lock(calling);
  return Perform(
      call, [work = std::move(work), place = order.Take()] { return work(place); }, Timeout::kOfWork);
}

rr_error* rr_queue_new(rr_queue** queue) {
  return Guard([&]() -> absl::Status {
    auto made = std::make_unique<rr_queue>();
    if (made->queue->descriptor() < 0) return absl::ResourceExhaustedError("no file descriptor for a queue");
    *queue = made.release();
    return absl::OkStatus();
  });
}

int32_t rr_queue_descriptor(const rr_queue* queue) { return queue->queue->descriptor(); }

size_t rr_queue_take(rr_queue* queue, rr_ended* ended, size_t capacity) {
  return Always([&] { return queue->queue->Take({ended, capacity}); });
}

void rr_queue_cancel(rr_queue* queue, uint64_t tag) {
  Always([&] { queue->queue->Cancel(tag); });
}

int32_t rr_queue_wait(rr_queue* queue, int64_t timeout_ms, rr_ended* ended) {
  const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), std::chrono::milliseconds(timeout_ms));
  return Always([&] { return queue->queue->Wait(deadline, *ended) ? 1 : 0; });
}
