#include "client/appender/appender.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/appender/append_session.h"
#include "client/appender/direct_append_stream.h"
#include "client/call/cancellation.h"
#include "client/call/fork_part.h"
#include "proto/wire/message/grpc_bytes.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

constexpr char kMethod[] = "/routing_replay.v1.RoutingReplay/Append";

// Callers put appends into the queue; one thread owns the connection, sends, receives and reports. Over the direct path
// (without gRPC) a caller sends a small append itself if nothing waits before it: that costs less than to wake the
// thread. Before a fork the thread ends. The parent starts it again at once if appends are open. Otherwise, and in the
// child, the next append starts it.
class AppenderImpl final : public PlanAppender, private ForkPart {
 public:
  AppenderImpl(AppenderRun run, AppenderOptions options)
      : PlanAppender(run.geometry, run.blocks, options),
        run_(std::move(run)),
        options_(std::move(options)),
        session_(SessionOptions()) {
    MutexLock lock(mutex_);
    Start();
  }
  ~AppenderImpl() override { Abandon(); }

  absl::StatusOr<std::optional<PlanAppender::Queued>> Enqueue(AppendPlan& plan, bool may_wait) override {
    const OnCancel wake(mutex_, room_);
    const Clock::Time give_up = DeadlineAfter(Clock::Real().Now(), options_.queue_timeout);
    MutexLock lock(mutex_);
    const auto has_room = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return session_.HasRoom(plan.bytes); };
    if (!has_room() && !may_wait && options_.queue_timeout.count() > 0) return std::optional<Queued>();
    const absl::Status status = WaitFor(room_, give_up, has_room);
    if (stopping_) return absl::CancelledError("the appender is closed");
    if (absl::IsDeadlineExceeded(status) && !options_.drop_when_full) {
      return session_.NoRoom(plan.pieces.front().header.sample);
    }
    if (!status.ok() && !absl::IsDeadlineExceeded(status)) return status;
    Queued queued{.dropped = !status.ok()};
    const Clock::Time now = Clock::Real().Now();
    queued.sequence = session_.Add(std::move(plan), now, queued.dropped);
    if (!SendHere(now)) Wake();
    return std::optional(queued);
  }

  absl::Status SettleUpTo(uint64_t sequence, std::chrono::milliseconds timeout) override {
    const OnCancel wake(mutex_, delivered_);
    MutexLock lock(mutex_);
    return AwaitSettled(sequence, timeout);
  }

  absl::Status Flush(std::chrono::milliseconds timeout, AppendFailures* failures) override {
    const OnCancel wake(mutex_, delivered_);
    if (failures != nullptr) *failures = {};
    MutexLock lock(mutex_);
    const absl::Status status = AwaitSettled(session_.newest_open(), timeout);
    return status.ok() ? session_.TakeError(failures) : status;
  }

  absl::StatusOr<std::optional<AppendTrouble>> Settle(absl::string_view sample, std::optional<int64_t> attempt,
                                                      std::chrono::milliseconds timeout) override {
    const OnCancel wake(mutex_, delivered_);
    const SampleAttempt key{std::string(sample), attempt};
    MutexLock lock(mutex_);
    const absl::Status status = AwaitSettled(key, timeout);
    if (!status.ok()) return WithSample(status, key.sample);
    return session_.TellTrouble(key);
  }

  absl::Status Close(std::chrono::milliseconds timeout, AppendFailures* failures) override {
    if (failures != nullptr) *failures = {};
    {
      MutexLock lock(mutex_);
      if (stopping_) return absl::OkStatus();
    }
    const absl::Status status = Flush(timeout, failures);
    if (absl::IsCancelled(status) && absl::IsCancelled(CheckCall())) return status;  // The appender stays open.
    Abandon();
    return status;
  }

  AppenderMetrics metrics() const override {
    MutexLock lock(mutex_);
    return session_.metrics();
  }

 private:
  // The tag of the event with which Wake ends a wait for gRPC. All other tags are those of RawStream.
  static constexpr intptr_t kWake = 100;

  struct Events {
    ~Events() { close(direct_wake); }
    grpc::CompletionQueue queue;
    grpc::Alarm wake;
    const int direct_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // Used instead of `wake` on the direct path.
  };

  AppendSession::Options SessionOptions() const {
    return {.run = run_.name,
            .max_queued_bytes = options_.max_queued_bytes,
            .append_timeout = options_.append_timeout,
            .first_sequence = run_.first_sequence,
            .sequence_step = run_.sequence_step};
  }

  void Rest() override {
    {
      MutexLock lock(mutex_);
      resting_ = true;
      if (events_ && !stopping_) Wake();
    }
    Join();
    MutexLock lock(mutex_);
    resting_ = false;
    events_.reset();
    connection_ = {};
    session_.OnRest(Clock::Real().Now());
  }

  void GoOn() override {
    MutexLock lock(mutex_);
    if (!stopping_ && session_.newest_open() != 0) Wake();
  }

  void BeginAnew() override {
    MutexLock lock(mutex_);
    std::destroy_at(&session_);
    std::construct_at(&session_, SessionOptions());
  }

  // Starts the thread, which must not be running.
  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    events_ = std::make_unique<Events>();
    waking_ = on_direct_ = false;
    MutexLock lock(joining_);
    thread_ = std::thread([this] { Loop(); });
  }

  void Join() {
    MutexLock lock(joining_);
    if (thread_.joinable()) thread_.join();
  }

  // Waits until `done` returns true. DEADLINE_EXCEEDED if that takes too long; CANCELLED if the caller cancelled this
  // call, or if the appender is closed.
  template <typename Done>
  absl::Status WaitFor(CondVar& condition, Clock::Time deadline, const Done& done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    deadline = NoLaterThanCall(deadline);
    while (!done()) {
      if (stopping_) return absl::CancelledError("the appender was closed");
      if (absl::Status status = CheckCall(); absl::IsCancelled(status)) return status;
      if (Clock::Real().Now() >= deadline) return absl::DeadlineExceededError("not done in time");
      condition.WaitUntil(mutex_, deadline);
    }
    return absl::OkStatus();
  }

  // Waits until no append of this sample, or up to this sequence number, is open. Errors as WaitFor.
  template <typename Which>
  absl::Status AwaitSettled(const Which& which, std::chrono::milliseconds timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return session_.Settled(which); };
    const absl::Status status = WaitFor(delivered_, DeadlineAfter(Clock::Real().Now(), timeout), settled);
    return absl::IsDeadlineExceeded(status) ? session_.NotFlushed() : status;
  }

  // Sends the append that was added last from the calling thread, if that is possible at once. Returns false if the
  // appender's thread must be woken, to send it or its rest, or to receive.
  // Called with mutex_ held, but the lock order is sending_ before mutex_. To wait for sending_ here could deadlock
  // with Step, so SendHere only tries to lock it.
  bool SendHere(Clock::Time now) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!on_direct_ || waking_ || !sending_.TryLock()) return false;
    auto message = direct_->CanWrite() ? session_.NextIfSmall(now) : std::nullopt;
    if (message) direct_->Write(*std::move(message));
    const bool sent = message && !direct_->MustWake();
    sending_.Unlock();
    return sent;
  }

  // Wakes the thread; starts it if it is not running.
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!events_) Start();
    if (std::exchange(waking_, true)) return;
    if (on_direct_) {
      eventfd_write(events_->direct_wake, 1);
      return;
    }
    events_->wake.Set(&events_->queue, gpr_time_0(GPR_CLOCK_MONOTONIC),
                      QueueTag(kWake));  // Time 0 is due at once; the current time would be due up to 1 ms later.
  }

  // Ends the thread; open appends get no outcome.
  void Abandon() {
    {
      MutexLock lock(mutex_);
      if (!std::exchange(stopping_, true)) {
        room_.NotifyAll();
        delivered_.NotifyAll();
        if (events_) Wake();
      }
    }
    Join();
  }

  // The functions below run only on the appender's thread.
  void Loop() {
    while (true) {
      const Clock::Time next = Advance();
      {
        MutexLock lock(mutex_);
        if (stopping_ || resting_) break;
      }
      if (direct_) {
        OnDirectEvent(direct_->Wait(events_->direct_wake, next));
        continue;
      }
      void* tag = nullptr;
      bool ok = false;
      if (events_->queue.AsyncNext(&tag, &ok, GrpcDeadline(next)) == grpc::CompletionQueue::GOT_EVENT) {
        OnEvent(tag, ok);
      }
    }
    ShutDown();
  }

  // Does everything that can be done now, and returns the time at which there may be more to do.
  Clock::Time Advance() {
    while (true) {
      AppendSession::Action action = Step();
      Deliver();
      if (action.step == AppendSession::Step::kWait) return action.until;
      Do(std::move(action));
    }
  }

  // Decides what to do next, and sends the message if there is one to send.
  AppendSession::Action Step() {
    MutexLock sending(sending_);
    AppendSession::Action action;
    {
      MutexLock lock(mutex_);
      const Clock::Time now = Clock::Real().Now();
      if (stopping_ || resting_) return {.until = now};
      action = session_.Next(now, direct_ ? direct_->CanWrite() : stream_ && stream_->CanWrite());
    }
    if (action.step != AppendSession::Step::kSend) return action;
    AppendQueue::Message& message = action.message;
    direct_ ? direct_->Write(std::move(message))
            : stream_->Write(std::move(message.header), message.payload, message.owner);
    return action;
  }

  void Do(AppendSession::Action action) {
    switch (action.step) {
      case AppendSession::Step::kWait:
      case AppendSession::Step::kSend:
        return;
      case AppendSession::Step::kConnect: {
        auto connection = run_.link->Connect();
        if (!connection.ok()) {  // A certificate or token may just be being replaced: retry.
          MutexLock lock(mutex_);
          return session_.OnStreamEnd(absl::UnavailableError(connection.status().message()), Clock::Real().Now());
        }
        connection_ = *std::move(connection);
        if (auto direct = run_.link->BeginDirect(connection_, "Append", Clock::Time::max())) {
          direct_ = std::make_unique<DirectAppendStream>(std::move(direct), sending_);
          return WaitForDirect(true);
        }
        stream_ = std::make_unique<RawStream>(connection_, kMethod, events_->queue);
        return;
      }
      case AppendSession::Step::kCancel:
        run_.link->OnEnd(connection_, absl::UnavailableError("the server does not answer")).IgnoreError();
        return direct_ ? direct_->Cancel() : stream_->Cancel();
    }
  }

  void OnEvent(void* tag, bool ok) {
    if (tag == QueueTag(kWake)) {
      MutexLock lock(mutex_);
      waking_ = false;
      return;
    }
    RawStream::Event event = stream_->OnEvent(tag, ok);
    if (event.message) {
      const auto bytes = ReceivedBytes::From(*event.message);
      OnMessage(bytes.ok() ? absl::StatusOr<ByteChain>(bytes->chain()) : bytes.status());
    }
    if (event.end) OnStreamEnd(*std::move(event.end));
  }

  void OnMessage(const absl::StatusOr<ByteChain>& bytes) {
    MutexLock lock(mutex_);
    session_.OnMessage(bytes, Clock::Real().Now());
  }

  // From here on, the thread waits for events of the direct path (true) or of gRPC (false).
  // A wake-up may be pending where the thread waited until now. Consumes it, because the thread will not wait there
  // again.
  void WaitForDirect(bool direct) {
    MutexLock lock(mutex_);
    if (std::exchange(waking_, false)) {
      eventfd_t times = 0;
      void* tag = nullptr;
      bool ok = false;
      on_direct_ ? static_cast<bool>(eventfd_read(events_->direct_wake, &times)) : events_->queue.Next(&tag, &ok);
    }
    on_direct_ = direct;
  }

  void OnDirectEvent(DirectAppendStream::Event event) {
    if (event.woken) {
      MutexLock lock(mutex_);
      waking_ = false;
    }
    if (event.message) OnMessage(event.message->chain());
    if (!event.end) return;
    WaitForDirect(false);
    run_.link->EndDirect(connection_, direct_->TakeConnection(), *event.end);
    direct_.reset();
    OnStreamEnd(*std::move(event.end));
  }

  void OnStreamEnd(absl::Status why) {
    stream_.reset();
    why = run_.link->OnEnd(connection_, why);
    MutexLock lock(mutex_);
    session_.OnStreamEnd(std::move(why), Clock::Real().Now());
  }

  void Deliver() {
    std::vector<AppendQueue::Finished> finished;
    {
      MutexLock lock(mutex_);
      finished = session_.TakeFinished();
      if (finished.empty()) return;
      room_.NotifyAll();
    }
    std::vector<AppendOutcome> outcomes;
    for (AppendQueue::Finished& one : finished) {
      if (one.note) one.note(one.outcome);
      if (options_.on_outcome) options_.on_outcome(one.outcome);
      outcomes.push_back(std::move(one.outcome));
    }
    MutexLock lock(mutex_);
    session_.OnDelivered(outcomes);
    delivered_.NotifyAll();
  }

  void ShutDown() {
    if (direct_) WaitForDirect(false);
    direct_.reset();
    if (stream_) stream_->Cancel();
    void* tag = nullptr;
    bool ok = false;
    grpc::CompletionQueue& events = events_->queue;
    while (stream_ && events.Next(&tag, &ok)) OnEvent(tag, ok);
    events.Shutdown();
    while (events.Next(&tag, &ok)) {
    }
  }

  const AppenderRun run_;
  const AppenderOptions options_;

  mutable Mutex mutex_;
  CondVar room_;       // Notified when the queue may have room again.
  CondVar delivered_;  // Notified when outcomes were delivered.
  AppendSession session_ ABSL_GUARDED_BY(mutex_);
  bool waking_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;
  bool on_direct_ ABSL_GUARDED_BY(mutex_) = false;

  // Null while the thread is not running. It is set before the thread starts and reset after the thread has ended, with
  // mutex_ held.
  std::unique_ptr<Events> events_;
  ServerConnection connection_;                 // The connection of stream_ or direct_.
  std::unique_ptr<RawStream> stream_;           // At most one of stream_ and direct_ exists.
  std::unique_ptr<DirectAppendStream> direct_;  // While on_direct_, callers use it, too (SendHere).
  // Guards direct_. Held from the choice of a message until it is written, so that messages are written in the order in
  // which they were chosen. Locked before mutex_.
  Mutex sending_;
  Mutex joining_;
  std::thread thread_ ABSL_GUARDED_BY(joining_);
};

}  // namespace

std::unique_ptr<PlanAppender> MakeAppender(AppenderRun run, AppenderOptions options) {
  return std::make_unique<AppenderImpl>(std::move(run), std::move(options));
}

}  // namespace routing_replay::client
