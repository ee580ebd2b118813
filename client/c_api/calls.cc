#include "client/c_api/calls.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "client/c_api/gate.h"
#include "client/c_api/threads.h"
#include "client/call/cancellation.h"
#include "client/call/fork_part.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::c_api {

using client::Cancellation;

namespace {

// Calls under way and the ends of those that were. Thread-safe.
class Queue final : private client::ForkPart {
 public:
  Queue() : descriptor_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Queue() {
    for (const rr_ended& ended : ended_) rr_error_free(ended.error);
    if (descriptor_ >= 0) close(descriptor_);
  }

  int descriptor() const { return descriptor_; }

  absl::Status Begin(uint64_t tag, std::shared_ptr<Cancellation> cancellation) {
    MutexLock lock(mutex_);
    if (closed_) return absl::FailedPreconditionError("the queue is being freed");
    if (under_way_.emplace(tag, std::move(cancellation)).second) return absl::OkStatus();
    return Invalid("tag", absl::StrCat(tag, " is under way already"));
  }

  void End(uint64_t tag, const rr_error* error) {
    MutexLock lock(mutex_);
    under_way_.erase(tag);
    ended_.push_back({tag, error});
    const uint64_t one = 1;
    if (ended_.size() == 1) (void)!write(descriptor_, &one, sizeof(one));
    if (under_way_.empty()) idle_.NotifyAll();
  }

  size_t Take(absl::Span<rr_ended> ended) {
    MutexLock lock(mutex_);
    size_t taken = 0;
    for (; taken < ended.size() && !ended_.empty(); ++taken) {
      ended[taken] = ended_.front();
      ended_.pop_front();
    }
    uint64_t count = 0;
    if (taken > 0 && ended_.empty()) (void)!read(descriptor_, &count, sizeof(count));
    return taken;
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
    while (!under_way_.empty()) idle_.Wait(mutex_);
  }

 private:
  // Who frees a queue may be waiting for its calls in the parent.
  void BeginAnew() override {
    std::construct_at(&mutex_);
    std::construct_at(&idle_);
    if (const int own = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC); own >= 0) {
      dup3(own, descriptor_, O_CLOEXEC);
      close(own);
    }
    MutexLock lock(mutex_);
    under_way_.clear();
    for (const rr_ended& ended : std::exchange(ended_, {})) rr_error_free(ended.error);
  }

  const int descriptor_;
  Mutex mutex_;
  CondVar idle_;
  std::map<uint64_t, std::shared_ptr<Cancellation>> under_way_ ABSL_GUARDED_BY(mutex_);
  std::deque<rr_ended> ended_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Nothing: a fork has broken it off.
std::optional<CallEnd> TryDo(const std::function<CallEnd()>& work, Cancellation& cancellation) {
  const Gate::Breakable breakable(cancellation);
  const client::CallScope scope(&cancellation);
  CallEnd end = WithoutExceptions([&] {
    absl::Status over = client::CheckCall();
    return over.ok() ? work() : CallEnd(std::move(over));
  });
  if (!end.status.ok() && cancellation.cancelled()) return CallEnd(absl::CancelledError("the call was cancelled"));
  // What a flush says of failures is said once.
  if (!end.status.ok() && cancellation.broken_off() && end.failures.appends == 0) return std::nullopt;
  return end;
}

// Outside of the pool.
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

struct rr_queue final {
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
  if (absl::Status status = queue->Begin(call->tag, cancellation); !status.ok()) return status;
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
    work = nullptr;  // What it holds goes before its end is told.
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

void rr_queue_free(rr_queue* queue) {
  Always([&] {
    if (queue != nullptr) queue->queue->Close();
    delete queue;
  });
}
