#include "client/appender/appender.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/appender/append_session.h"
#include "client/appender/append_stream.h"
#include "client/channel/channel.h"
#include "client/server_limits.h"
#include "proto/transport/byte_buffer.h"
#include "proto/transport/queue_tag.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay::client {
namespace {

// Callers put appends into the queue; one thread owns the connection, sends, receives and reports.
class AppenderImpl final : public Appender {
 public:
  AppenderImpl(AppenderRun run, AppenderOptions options)
      : run_(std::move(run)),
        options_(std::move(options)),
        session_({.run = run_.name,
                  .max_queued_bytes = options_.max_queued_bytes,
                  .append_timeout = options_.append_timeout}) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~AppenderImpl() override;

  absl::Status Append(const AppendOptions& options, const TensorDescription& tensor,
                      absl::Span<const uint8_t> payload) override;
  absl::Status AppendUnrecorded(const AppendOptions& options, int64_t rows) override;
  absl::Status Flush(std::chrono::milliseconds timeout, AppendFailures* failures) override;
  AppenderMetrics metrics() const override;

 private:
  // An event on events_ that is not the stream's.
  static constexpr intptr_t kWake = 100;

  absl::StatusOr<AppendPlan> Plan(const AppendOptions& options, const TensorDescription& tensor,
                                  absl::Span<const uint8_t> payload) const;
  absl::Status Enqueue(absl::StatusOr<AppendPlan> plan, const std::string& sample);
  void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Everything below is for the thread.
  void Loop();
  // Does what can be done now and gives the time at which there may be more.
  Clock::Time Advance();
  AppendSession::Action NextAction();
  void Do(AppendSession::Action action);
  absl::StatusOr<std::vector<SampleState>> Stat(Producer producer, const std::vector<std::string>& samples);
  void OnEvent(intptr_t tag, bool ok);
  void OnMessage(grpc::ByteBuffer message);
  void OnStreamEnd(absl::Status why);
  void Deliver();
  void ShutDown();

  const AppenderRun run_;
  const AppenderOptions options_;
  grpc::CompletionQueue events_;

  mutable Mutex mutex_;
  CondVar room_;       // Of the queue.
  CondVar delivered_;  // Outcomes.
  AppendSession session_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm wake_ ABSL_GUARDED_BY(mutex_);
  bool waking_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* stat_context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Of the call in progress.

  ServerConnection connection_;  // Of the stream.
  std::unique_ptr<AppendStream> stream_;
  std::thread thread_;
};

AppenderImpl::~AppenderImpl() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    if (stat_context_ != nullptr) stat_context_->TryCancel();
    room_.NotifyAll();
    Wake();
  }
  thread_.join();
}

void AppenderImpl::Wake() {
  if (std::exchange(waking_, true)) return;
  wake_.Set(&events_, gpr_time_0(GPR_CLOCK_MONOTONIC), QueueTag(kWake));  // Now would be rounded up to a millisecond.
}

absl::StatusOr<AppendPlan> AppenderImpl::Plan(const AppendOptions& options, const TensorDescription& tensor,
                                              absl::Span<const uint8_t> payload) const {
  if (!options_.encode_blocks)
    return PlanTensor(options, tensor, payload, {run_.max_message_bytes, run_.max_payload_bytes});
  return PlanRows(options, tensor, payload, *run_.geometry,
                  {run_.block_rows, run_.codec, run_.max_message_bytes, run_.max_payload_bytes});
}

absl::Status AppenderImpl::Append(const AppendOptions& options, const TensorDescription& tensor,
                                  absl::Span<const uint8_t> payload) {
  return Enqueue(Plan(options, tensor, payload), options.sample);
}

absl::Status AppenderImpl::AppendUnrecorded(const AppendOptions& options, int64_t rows) {
  return Enqueue(PlanUnrecorded(options, rows), options.sample);
}

absl::Status AppenderImpl::Enqueue(absl::StatusOr<AppendPlan> plan, const std::string& sample) {
  if (!plan.ok()) {
    MutexLock lock(mutex_);
    session_.CountRefusal(GetErrorDetail(plan.status()).value_or(ErrorDetail()).reason);
    return WithSample(plan.status(), sample);
  }
  const Clock::Time give_up = DeadlineAfter(Clock::Real().Now(), options_.queue_timeout);
  MutexLock lock(mutex_);
  while (!session_.HasRoom(plan->bytes) && !stopping_) {
    const bool in_time = room_.WaitUntil(mutex_, give_up) || Clock::Real().Now() < give_up;
    if (!in_time && !session_.HasRoom(plan->bytes)) return session_.NoRoom(sample);
  }
  if (stopping_) return absl::CancelledError("the appender is being destroyed");
  session_.Add(*std::move(plan), Clock::Real().Now());
  Wake();
  return absl::OkStatus();
}

absl::Status AppenderImpl::Flush(std::chrono::milliseconds timeout, AppendFailures* failures) {
  const Clock::Time deadline = DeadlineAfter(Clock::Real().Now(), timeout);
  MutexLock lock(mutex_);
  if (failures != nullptr) *failures = {};
  const uint64_t last = session_.newest_open();
  while (!session_.Settled(last)) {
    const bool in_time = delivered_.WaitUntil(mutex_, deadline) || Clock::Real().Now() < deadline;
    if (!in_time && !session_.Settled(last)) return session_.NotFlushed();
  }
  return session_.TakeError(failures);
}

AppenderMetrics AppenderImpl::metrics() const {
  MutexLock lock(mutex_);
  return session_.metrics();
}

void AppenderImpl::Loop() {
  while (true) {
    const Clock::Time next = Advance();
    {
      MutexLock lock(mutex_);
      if (stopping_) break;
    }
    void* tag = nullptr;
    bool ok = false;
    if (events_.AsyncNext(&tag, &ok, GrpcDeadline(next)) == grpc::CompletionQueue::GOT_EVENT) {
      OnEvent(NumberOf(tag), ok);
    }
  }
  ShutDown();
}

Clock::Time AppenderImpl::Advance() {
  while (true) {
    AppendSession::Action action = NextAction();
    Deliver();
    if (action.step == AppendSession::Step::kWait) return action.until;
    Do(std::move(action));
  }
}

AppendSession::Action AppenderImpl::NextAction() {
  MutexLock lock(mutex_);
  const Clock::Time now = Clock::Real().Now();
  if (stopping_) return {.until = now};
  return session_.Next(now, stream_ && stream_->CanWrite());
}

void AppenderImpl::Do(AppendSession::Action action) {
  switch (action.step) {
    case AppendSession::Step::kWait:
      return;
    case AppendSession::Step::kAsk: {
      const auto states = Stat(action.producer, action.samples);
      MutexLock lock(mutex_);
      return session_.OnStates(states, Clock::Real().Now());
    }
    case AppendSession::Step::kConnect: {
      auto connection = run_.link->Connect();
      if (!connection.ok()) {
        MutexLock lock(mutex_);
        return session_.OnStreamEnd(connection.status(), Clock::Real().Now());
      }
      connection_ = *std::move(connection);
      stream_ = std::make_unique<AppendStream>(connection_, events_);
      return;
    }
    case AppendSession::Step::kSend:
      return stream_->Write(std::move(action.message));
    case AppendSession::Step::kCancel:
      run_.link->OnEnd(connection_, absl::UnavailableError("the server does not answer")).IgnoreError();
      return stream_->Cancel();
  }
}

absl::StatusOr<std::vector<SampleState>> AppenderImpl::Stat(Producer producer,
                                                            const std::vector<std::string>& samples) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAskTimeout);
  {
    MutexLock lock(mutex_);
    if (stopping_) return absl::CancelledError("the appender is being destroyed");
    stat_context_ = &context;
  }
  auto states = run_.stat(context, producer, samples);
  MutexLock lock(mutex_);
  stat_context_ = nullptr;
  return states;
}

void AppenderImpl::OnEvent(intptr_t tag, bool ok) {
  if (tag == kWake) {
    MutexLock lock(mutex_);
    waking_ = false;
    return;
  }
  AppendStream::Event event = stream_->OnEvent(static_cast<AppendStream::Tag>(tag), ok);
  if (event.message) OnMessage(*std::move(event.message));
  if (event.end) OnStreamEnd(*std::move(event.end));
}

void AppenderImpl::OnMessage(grpc::ByteBuffer message) {
  const auto bytes = ReceivedBytes::From(message);
  MutexLock lock(mutex_);
  session_.OnMessage(bytes.ok() ? absl::StatusOr<ByteChain>(bytes->chain()) : bytes.status(), Clock::Real().Now());
}

void AppenderImpl::OnStreamEnd(absl::Status why) {
  stream_.reset();
  why = run_.link->OnEnd(connection_, why);
  MutexLock lock(mutex_);
  session_.OnStreamEnd(std::move(why), Clock::Real().Now());
}

void AppenderImpl::Deliver() {
  std::vector<AppendQueue::Finished> finished;
  {
    MutexLock lock(mutex_);
    finished = session_.TakeFinished();
    if (finished.empty()) return;
    room_.NotifyAll();
  }
  for (const AppendQueue::Finished& f : finished) {
    if (options_.on_outcome) options_.on_outcome(f.outcome);
  }
  MutexLock lock(mutex_);
  session_.OnDelivered(finished);
  delivered_.NotifyAll();
}

void AppenderImpl::ShutDown() {
  if (stream_) stream_->Cancel();
  void* tag = nullptr;
  bool ok = false;
  while (stream_ && events_.Next(&tag, &ok)) OnEvent(NumberOf(tag), ok);
  events_.Shutdown();
  while (events_.Next(&tag, &ok)) {
  }
}

}  // namespace

std::unique_ptr<Appender> MakeAppender(AppenderRun run, AppenderOptions options) {
  return std::make_unique<AppenderImpl>(std::move(run), std::move(options));
}

}  // namespace routing_replay::client
