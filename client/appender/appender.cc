#include "client/appender/appender.h"

#include <grpcpp/alarm.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>

#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/appender/append_plan.h"
#include "client/appender/append_queue.h"
#include "client/appender/append_stream.h"
#include "client/backoff.h"
#include "client/channel/channel.h"
#include "proto/transport/byte_buffer.h"
#include "proto/wire/mutex.h"
#include "routing_replay/wire/error_detail.h"

namespace routing_replay {
namespace {

constexpr Backoff::Options kRefusalBackoff{.initial = std::chrono::milliseconds(5),
                                           .maximum = std::chrono::milliseconds(500)};
constexpr Backoff::Options kReconnectBackoff{.initial = std::chrono::milliseconds(50),
                                             .maximum = std::chrono::seconds(1)};
constexpr std::chrono::seconds kStatTimeout(5);

// Callers put appends into the queue; one thread owns the connection, sends, receives and reports.
class AppenderImpl final : public Appender {
 public:
  AppenderImpl(AppenderRun run, AppenderOptions options)
      : run_(std::move(run)),
        options_(std::move(options)),
        stub_(run_.channel),
        queue_(run_.name, Backoff(kRefusalBackoff)) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~AppenderImpl() override;

  absl::Status Append(const AppendOptions& options, const TensorDescription& tensor,
                      absl::Span<const uint8_t> payload) override;
  absl::Status AppendUnrecorded(const AppendOptions& options, int64_t rows) override;
  absl::Status Flush(std::chrono::milliseconds timeout) override;
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
  void Connect();
  // False if the server cannot be reached.
  bool ResolveDoubts();
  absl::StatusOr<std::vector<SampleState>> Stat(Producer producer, const std::vector<std::string>& samples);
  void OnEvent(intptr_t tag, bool ok);
  void OnMessage(grpc::ByteBuffer message);
  void OnStreamEnd(absl::Status why);
  void Deliver();
  void ShutDown();

  const AppenderRun run_;
  const AppenderOptions options_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue events_;

  mutable Mutex mutex_;
  CondVar room_;       // Of the queue.
  CondVar delivered_;  // Outcomes.
  AppendQueue queue_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> open_ ABSL_GUARDED_BY(mutex_);  // Sequence numbers whose outcome is not delivered.
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
  grpc::Alarm wake_ ABSL_GUARDED_BY(mutex_);
  bool waking_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* stat_context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // Of the call in progress.

  std::unique_ptr<AppendStream> stream_;
  Backoff reconnect_backoff_{kReconnectBackoff};
  Clock::Time connect_after_;
  bool connected_before_ = false;
  bool gave_up_on_stream_ = false;  // Cancelled because it did not answer.

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
  wake_.Set(&events_, std::chrono::system_clock::now(), reinterpret_cast<void*>(kWake));
}

absl::StatusOr<AppendPlan> AppenderImpl::Plan(const AppendOptions& options, const TensorDescription& tensor,
                                              absl::Span<const uint8_t> payload) const {
  if (!options_.encode_blocks) return PlanTensor(options, tensor, payload, run_.max_message_bytes);
  auto rows = DecodeTensor(*run_.geometry, tensor, payload,
                           {.row_start = options.row_start,
                            .unrecorded = options.unrecorded,
                            .block_rows = run_.block_rows,
                            .codec = run_.codec,
                            .max_payload_bytes = run_.max_payload_bytes});
  if (!rows.ok()) return rows.status();
  // Half of a message is left for the headers and the token ids.
  return PlanBlocks(options, *std::move(rows), run_.block_rows, std::min(kPieceBytes, run_.max_message_bytes / 2));
}

absl::Status AppenderImpl::Append(const AppendOptions& options, const TensorDescription& tensor,
                                  absl::Span<const uint8_t> payload) {
  return Enqueue(Plan(options, tensor, payload), options.sample);
}

absl::Status AppenderImpl::AppendUnrecorded(const AppendOptions& options, int64_t rows) {
  return Enqueue(PlanUnrecorded(options, rows), options.sample);
}

absl::Status AppenderImpl::Enqueue(absl::StatusOr<AppendPlan> plan, const std::string& sample) {
  if (!plan.ok()) return WithSample(plan.status(), sample);
  const Clock::Time give_up = Clock::Real().Now() + options_.queue_timeout;
  MutexLock lock(mutex_);
  const auto full = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return queue_.queued_bytes() > 0 && queue_.queued_bytes() + plan->bytes > options_.max_queued_bytes;
  };
  while (full() && !stopping_) {
    if (room_.WaitUntil(mutex_, give_up) || Clock::Real().Now() < give_up || !full()) continue;
    return MakeError(absl::StatusCode::kResourceExhausted,
                     absl::StrCat("the append queue stayed full: ", queue_.queued_bytes(), " of ",
                                  options_.max_queued_bytes, " bytes"),
                     {.reason = Reason::kOverBudget, .sample = sample});
  }
  if (stopping_) return absl::CancelledError("the appender is being destroyed");
  open_.insert(queue_.Add(*std::move(plan), Clock::Real().Now() + options_.append_timeout));
  Wake();
  return absl::OkStatus();
}

absl::Status AppenderImpl::Flush(std::chrono::milliseconds timeout) {
  const Clock::Time deadline = Clock::Real().Now() + timeout;
  MutexLock lock(mutex_);
  const uint64_t last = open_.empty() ? 0 : *open_.rbegin();
  while (!open_.empty() && *open_.begin() <= last) {
    if (delivered_.WaitUntil(mutex_, deadline) || Clock::Real().Now() < deadline) continue;
    if (open_.empty() || *open_.begin() > last) break;
    return absl::DeadlineExceededError(absl::StrCat(open_.size(), " appends have no outcome yet"));
  }
  return std::exchange(first_error_, absl::OkStatus());
}

AppenderMetrics AppenderImpl::metrics() const {
  MutexLock lock(mutex_);
  return queue_.metrics();
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
      OnEvent(reinterpret_cast<intptr_t>(tag), ok);
    }
  }
  ShutDown();
}

Clock::Time AppenderImpl::Advance() {
  const Clock::Time now = Clock::Real().Now();
  bool unsent = false;
  {
    MutexLock lock(mutex_);
    const bool stuck = queue_.Expire(now);
    if (stuck && stream_ && !std::exchange(gave_up_on_stream_, true)) stream_->Cancel();
    unsent = queue_.HasUnsent();
  }
  if (!stream_ && unsent && now >= connect_after_) Connect();
  if (stream_ && stream_->CanWrite()) {
    MutexLock lock(mutex_);
    if (auto message = queue_.NextMessage(now)) stream_->Write(*std::move(message));
  }
  Deliver();
  MutexLock lock(mutex_);
  Clock::Time next = queue_.NextEvent(now).value_or(now + std::chrono::hours(1));
  if (!stream_ && queue_.HasUnsent()) next = std::min(next, connect_after_);
  return next;
}

void AppenderImpl::Connect() {
  if (!ResolveDoubts()) {
    connect_after_ = Clock::Real().Now() + reconnect_backoff_.Next();
    return;
  }
  MutexLock lock(mutex_);
  if (stopping_ || !queue_.HasUnsent()) return;
  if (std::exchange(connected_before_, true)) queue_.CountReconnect();
  queue_.OnStreamStart();
  gave_up_on_stream_ = false;
  stream_ = std::make_unique<AppendStream>(stub_, events_);
}

bool AppenderImpl::ResolveDoubts() {
  std::map<Producer, std::vector<std::string>> samples;
  {
    MutexLock lock(mutex_);
    for (const AppendQueue::SampleKey& key : queue_.InDoubt()) samples[key.producer].push_back(key.sample);
  }
  for (const auto& [producer, names] : samples) {
    const auto states = Stat(producer, names);
    if (absl::IsUnavailable(states.status()) || absl::IsDeadlineExceeded(states.status())) return false;
    MutexLock lock(mutex_);
    if (states.ok()) queue_.OnStates(*states);
  }
  return true;
}

absl::StatusOr<std::vector<SampleState>> AppenderImpl::Stat(Producer producer,
                                                            const std::vector<std::string>& samples) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kStatTimeout);
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
  const auto response = bytes.ok() ? ParseAppendResponse(bytes->chain()) : bytes.status();
  // Without the answer nothing more is known of this stream.
  if (!response.ok()) return stream_->Cancel();
  reconnect_backoff_.Reset();
  MutexLock lock(mutex_);
  queue_.OnResponse(*response, Clock::Real().Now());
}

void AppenderImpl::OnStreamEnd(absl::Status why) {
  stream_.reset();
  connect_after_ = Clock::Real().Now() + reconnect_backoff_.Next();
  if (gave_up_on_stream_) why = absl::DeadlineExceededError("the server did not answer");
  MutexLock lock(mutex_);
  queue_.OnStreamEnd(why);
}

void AppenderImpl::Deliver() {
  std::vector<AppendQueue::Finished> finished;
  {
    MutexLock lock(mutex_);
    finished = queue_.TakeFinished();
    if (finished.empty()) return;
    room_.NotifyAll();
  }
  for (const AppendQueue::Finished& f : finished) {
    if (options_.on_outcome) options_.on_outcome(f.outcome);
  }
  MutexLock lock(mutex_);
  for (const AppendQueue::Finished& f : finished) {
    open_.erase(f.sequence);
    first_error_.Update(f.outcome.status);
  }
  delivered_.NotifyAll();
}

void AppenderImpl::ShutDown() {
  if (stream_) stream_->Cancel();
  void* tag = nullptr;
  bool ok = false;
  while (stream_ && events_.Next(&tag, &ok)) OnEvent(reinterpret_cast<intptr_t>(tag), ok);
  events_.Shutdown();
  while (events_.Next(&tag, &ok)) {
  }
}

}  // namespace

std::unique_ptr<Appender> MakeAppender(AppenderRun run, AppenderOptions options) {
  return std::make_unique<AppenderImpl>(std::move(run), std::move(options));
}

}  // namespace routing_replay
