#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/message/frame.h"
#include "proto/wire/ring/ring_stream.h"
#include "proto/wire/status_macros.h"
#include "routing_replay/v1/routing_replay.pb.h"
#include "routing_replay/wire/error_detail.h"
#include "server/direct/direct_loop.h"

namespace routing_replay::server {
namespace {

constexpr uint32_t kMaxCallBytes = 4 << 10;
// For a longer header, memory is reserved from ServiceContext::read_requests first; the budget is only for payloads.
constexpr uint32_t kFreeHeaderBytes = 64 << 10;
// Bytes to read from one socket before other sockets are served.
constexpr size_t kBytesPerTurn = 4 << 20;
constexpr std::chrono::seconds kLinger(2);
// A connection must begin its first call within kFirstCall, and each later one within kNextCall; within stall_timeout,
// if that is shorter. Otherwise it is closed.
constexpr std::chrono::seconds kFirstCall{20}, kNextCall{60};

absl::Status TooMuch(Reason reason, const char* field, absl::string_view what) {
  return MakeError(absl::StatusCode::kResourceExhausted, absl::StrCat(field, ": ", what),
                   {.reason = reason, .field = field});
}

// One connection. It carries one call at a time and implements that call's stream. All members are used only on the
// thread of its loop.
class DirectConnection final : public LoopSocket, public std::enable_shared_from_this<DirectConnection> {
 public:
  DirectConnection(ServiceContext& context, DirectLoop& loop, std::unique_ptr<ByteStream> stream, std::string peer,
                   std::function<void()> closed);
  ~DirectConnection() override;
  // Called once.
  void Open();

  void OnReady(uint32_t events) override;
  void OnSecond(std::chrono::steady_clock::time_point now) override;
  // Closes at once. Open operations end with an error.
  void Close() override;

 private:
  friend class DirectStream;
  enum class State {
    kIdle,       // Between calls.
    kInCall,     // A call is in progress.
    kEnding,     // The call has finished and its end frame is being sent.
    kLingering,  // All is sent. Discards what arrives: closing with unread bytes could lose the end frame.
    kClosed,
  };

  // These implement CallStream.
  void Arrive(CallEvent& arrived, CallEvent& gone);
  const Caller& caller() const { return caller_; }
  void Receive(int64_t most_payload, CallEvent& came);
  absl::StatusOr<ReceivedMessage> Take();
  void Send(SentMessage message, CallEvent& sent);
  void Finish(const absl::Status& status, CallEvent& ended);

  // `ended` and `sent` are reported when the frame is sent. They have begun already (CallEvent::Begin), or are null.
  void End(const absl::Status& status, CallEvent* ended);
  void SendFrame(FrameType type, SentMessage message, CallEvent* sent);

  // Checks whether the frame is allowed, before memory is allocated for it.
  absl::Status Admit(const Frame& frame);
  absl::Status AdmitMessage(const Frame& frame);
  // Receives available bytes of the next frame, if one is wanted.
  void Fill();
  void OnFrame();
  void OnBadFrame(const absl::Status& status);
  void BeginCall(const ReceivedFrame& frame);
  // Sends as much as the socket accepts now.
  void Flush();
  void OnEndSent();
  // Answers a client that asks for shared memory, and switches to it if context_.shared_memory has enough.
  void OfferMemory();
  void Discard();
  // Tells the loop which events to watch. `too_early`: events that have just arrived although they are not wanted now.
  // If bytes are among them, the socket is not watched for bytes until some are wanted; otherwise the loop would wake
  // up again and again.
  void Watch(uint32_t too_early = 0);
  bool WantsBytes() const { return state_ == State::kIdle || (state_ == State::kInCall && came_ != nullptr); }
  void Complete(CallEvent*& event, bool ok);

  ServiceContext& context_;
  DirectLoop& loop_;
  ByteReservation shared_memory_;       // Reservation for the stream's shared memory.
  std::unique_ptr<ByteStream> stream_;  // Null once closed.
  const std::function<void()> closed_;
  uint64_t number_ = 0;
  uint32_t watched_ = 0;
  bool ready_ = false;  // A call of OnReady is scheduled.
  State state_ = State::kIdle;
  std::chrono::steady_clock::time_point since_;  // When the state began; in a call, when the last frame began.
  bool had_call_ = false;
  FrameReader reader_;
  FrameWriter writer_;
  std::vector<PayloadPart> sending_;  // Keeps the bytes alive that writer_ sends.
  CallEvent* sent_ = nullptr;

  // State of the call:
  Caller caller_;
  enum class Method { kGreeting, kAppend, kRead } method_ = Method::kGreeting;
  int64_t messages_ = 0;
  int64_t most_payload_ = 0;
  ByteReservation header_memory_;  // Reservation for a long header that is being received.
  absl::Status bad_frame_;
  absl::Status end_;
  CallEvent* gone_ = nullptr;
  CallEvent* came_ = nullptr;
};

// The stream of a call on a DirectConnection. The connection may close before the call ends.
class DirectStream final : public CallStream {
 public:
  explicit DirectStream(std::shared_ptr<DirectConnection> connection) : connection_(std::move(connection)) {}

  void Arrive(CallEvent& arrived, CallEvent& gone) override { connection_->Arrive(arrived, gone); }
  std::unique_ptr<CallStream> Next() override { return nullptr; }
  Caller caller() const override { return connection_->caller(); }
  void Receive(int64_t most_payload, CallEvent& came) override { connection_->Receive(most_payload, came); }
  absl::StatusOr<ReceivedMessage> Take() override { return connection_->Take(); }
  void Send(SentMessage message, CallEvent& sent) override { connection_->Send(std::move(message), sent); }
  void Finish(const absl::Status& status, CallEvent& ended) override { connection_->Finish(status, ended); }
  void Cancel() override { connection_->Close(); }

 private:
  const std::shared_ptr<DirectConnection> connection_;
};

DirectConnection::DirectConnection(ServiceContext& context, DirectLoop& loop, std::unique_ptr<ByteStream> stream,
                                   std::string peer, std::function<void()> closed)
    : context_(context),
      loop_(loop),
      stream_(std::move(stream)),
      closed_(std::move(closed)),
      since_(std::chrono::steady_clock::now()),
      reader_([this](const Frame& frame) { return Admit(frame); }),
      caller_{.peer = std::move(peer)} {
  caller_.transport = caller_.peer == "unix:" ? "unix" : "direct";
}

void DirectConnection::Open() {
  watched_ = stream_->read_events() | EPOLLRDHUP;
  number_ = loop_.Add(shared_from_this(), stream_->fd(), watched_);
}

DirectConnection::~DirectConnection() {
  if (stream_ != nullptr) closed_();
}

void DirectConnection::Complete(CallEvent*& event, bool ok) {
  if (event != nullptr) loop_.Complete(*std::exchange(event, nullptr), ok);
}

void DirectConnection::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  loop_.Forget(number_, stream_->fd());
  stream_.reset();
  shared_memory_.Release();
  Complete(came_, false);
  Complete(sent_, false);
  sending_.clear();
  Complete(gone_, true);
  closed_();
}

void DirectConnection::OnReady(uint32_t events) {
  if (state_ == State::kClosed) return;
  if ((events & stream_->write_events()) != 0) Flush();
  if (state_ == State::kLingering) return Discard();
  const bool hung_up = (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  if (WantsBytes()) {
    Fill();
  } else if (hung_up) {
    Close();
  } else {
    Watch(events);
  }
}

void DirectConnection::OnSecond(std::chrono::steady_clock::time_point now) {
  using Time = std::chrono::milliseconds;
  if (state_ == State::kClosed) return;
  // During a call, this function only limits the time to receive a frame; the call has its own other timeouts.
  if (state_ == State::kInCall && (reader_.at_start() || reader_.done())) return;
  const Time stall = context_.config.stall_timeout;
  const Time longest = state_ == State::kLingering ? Time(kLinger)
                       : state_ == State::kEnding || state_ == State::kInCall
                           ? stall
                           : std::min<Time>(had_call_ ? kNextCall : kFirstCall, stall);
  if (now - since_ > longest) Close();
}

void DirectConnection::Watch(uint32_t too_early) {
  if (state_ == State::kClosed) return;
  // If the socket is already watched for bytes, it stays so between two messages until some arrive. By then the next
  // message is usually wanted, so the system calls to stop and resume watching are saved.
  uint32_t wanted = EPOLLRDHUP | (watched_ & stream_->read_events() & ~too_early);
  if (WantsBytes() || state_ == State::kLingering) wanted |= stream_->read_events();
  if (!writer_.done()) wanted |= stream_->write_events();
  if (wanted != std::exchange(watched_, wanted)) loop_.Watch(number_, stream_->fd(), wanted);
  const bool ready = (WantsBytes() && stream_->HasBytes()) || (!writer_.done() && stream_->HasRoom());
  if (!ready || std::exchange(ready_, true)) return;
  loop_.Run([self = shared_from_this(), events = stream_->write_events()] {
    self->ready_ = false;
    self->OnReady(events);
  });
}

absl::Status DirectConnection::Admit(const Frame& frame) {
  if (state_ == State::kInCall) return AdmitMessage(frame);
  if (frame.type == FrameType::kCall && frame.header_bytes <= kMaxCallBytes && frame.payload_bytes == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("frame: expected the start of a call");
}

absl::Status DirectConnection::AdmitMessage(const Frame& frame) {
  const auto most = static_cast<uint64_t>(context_.config.max_message_bytes);
  if (frame.type != FrameType::kMessage) return absl::InvalidArgumentError("frame: expected a message");
  if (frame.payload_bytes > most || frame.header_bytes > most - frame.payload_bytes) {
    return TooMuch(Reason::kLength, "message", absl::StrCat("must have at most ", most, " bytes"));
  }
  if (frame.payload_bytes > static_cast<uint64_t>(most_payload_)) {
    return TooMuch(Reason::kOverBudget, "payload",
                   absl::StrCat(frame.payload_bytes, " bytes sent, ", most_payload_, " granted; ask for credit first"));
  }
  if (frame.header_bytes <= kFreeHeaderBytes) return absl::OkStatus();
  RR_ASSIGN_OR_RETURN(header_memory_, ReserveForRead(context_.read_requests, frame.header_bytes));
  return absl::OkStatus();
}

void DirectConnection::Fill() {
  for (size_t taken = 0; WantsBytes() && taken < kBytesPerTurn;) {
    const auto bytes = stream_->Read(reader_.Space());
    if (absl::IsInvalidArgument(bytes.status())) return OnBadFrame(bytes.status());
    if (!bytes.ok()) return Close();
    if (*bytes == 0) return Watch();
    taken += *bytes;
    if (state_ == State::kInCall && reader_.at_start()) since_ = std::chrono::steady_clock::now();
    if (absl::Status status = reader_.Advance(*bytes); !status.ok()) return OnBadFrame(status);
    if (reader_.done()) OnFrame();
  }
  Watch();
}

void DirectConnection::OnFrame() {
  if (state_ == State::kIdle) return BeginCall(reader_.Take());
  ++messages_;
  Complete(came_, true);
}

// The call learns of the error from its next Take, and ends with it.
void DirectConnection::OnBadFrame(const absl::Status& status) {
  if (state_ == State::kIdle) return Close();
  bad_frame_ = status;
  Complete(came_, true);
  Watch();
}

void DirectConnection::BeginCall(const ReceivedFrame& frame) {
  v1::DirectCall call;
  const absl::string_view header = frame.header();
  if (!call.ParseFromArray(header.data(), static_cast<int>(header.size()))) return Close();
  const std::string& method = call.method();
  if (!method.empty() && method != "Append" && method != "Read") return Close();
  if (!had_call_) caller_.certificate_names = stream_->peer_names();
  method_ = method.empty() ? Method::kGreeting : method == "Read" ? Method::kRead : Method::kAppend;
  had_call_ = true;
  messages_ = 0;
  const auto token = context_.direct.tickets->TokenOf(call.ticket());
  if (!token) {
    // The client asks for a new ticket over gRPC and connects again.
    return End(absl::UnavailableError("ticket: unknown or expired; request a new one with OpenDirect"), nullptr);
  }
  const bool offer = call.shared_memory() && absl::string_view(caller_.transport) == "unix";
  if (method_ == Method::kGreeting) return offer ? OfferMemory() : End(absl::OkStatus(), nullptr);
  caller_.authorization = token->empty() ? "" : absl::StrCat("Bearer ", *token);
  const std::chrono::milliseconds timeout(call.timeout_ms());
  caller_.deadline = timeout.count() > 0 ? DeadlineAfter(Clock::Real().Now(), timeout) : Clock::Time::max();
  state_ = State::kInCall;
  auto stream = std::make_unique<DirectStream>(shared_from_this());
  (method_ == Method::kRead ? ServeRead : ServeAppend)(context_, loop_, std::move(stream));
}

void DirectConnection::Arrive(CallEvent& arrived, CallEvent& gone) {
  gone_ = &gone;
  loop_.Complete(*arrived.Begin(), true);
}

void DirectConnection::Receive(int64_t most_payload, CallEvent& came) {
  came_ = came.Begin();
  most_payload_ = most_payload;
  if (state_ == State::kClosed) return Complete(came_, false);
  Fill();
}

absl::StatusOr<ReceivedMessage> DirectConnection::Take() {
  if (!bad_frame_.ok()) return bad_frame_;
  auto frame = std::make_shared<ReceivedFrame>(reader_.Take());
  ReceivedMessage message{.bytes = frame->chain(), .parts = std::move(frame->parts)};
  auto memory = std::make_shared<ByteReservation>(std::move(header_memory_));
  message.owner = std::make_shared<std::pair<std::shared_ptr<ReceivedFrame>, std::shared_ptr<ByteReservation>>>(
      std::move(frame), std::move(memory));
  return message;
}

void DirectConnection::Send(SentMessage message, CallEvent& sent) {
  CallEvent* event = sent.Begin();
  if (state_ == State::kClosed) return Complete(event, false);
  SendFrame(FrameType::kMessage, std::move(message), event);
}

void DirectConnection::Finish(const absl::Status& status, CallEvent& ended) {
  Complete(came_, false);
  if (!writer_.done()) Close();  // A message is only partly sent, so no end frame can follow.
  CallEvent* event = ended.Begin();
  state_ == State::kClosed ? Complete(event, true) : End(status, event);
}

void DirectConnection::End(const absl::Status& status, CallEvent* ended) {
  end_ = status;
  state_ = State::kEnding;
  since_ = std::chrono::steady_clock::now();
  SendFrame(FrameType::kEnd, {.header = status.ok() ? "" : EncodeStreamStatus(status)}, ended);
}

void DirectConnection::SendFrame(FrameType type, SentMessage message, CallEvent* sent) {
  std::vector<absl::Span<const uint8_t>> payload;
  for (const PayloadPart& part : message.payload) payload.push_back(part.bytes);
  writer_.Put(type, std::move(message.header), payload, /*in_parts=*/false);
  sending_ = std::move(message.payload);
  sent_ = sent;
  Flush();
}

void DirectConnection::Flush() {
  if (writer_.done()) return;
  if (!writer_.SendTo(*stream_).ok()) return Close();
  if (!writer_.done()) return Watch();
  sending_.clear();
  Complete(sent_, true);
  if (state_ == State::kEnding) OnEndSent();
  Watch();
}

// The connection is reused only after a greeting (a call without a method) or a read that ended with OK: then the
// client sends nothing more for this call. Otherwise the connection is closed.
void DirectConnection::OnEndSent() {
  Complete(gone_, true);
  since_ = std::chrono::steady_clock::now();
  const int64_t expected = method_ == Method::kRead ? 1 : 0;
  const bool all_came = method_ != Method::kAppend && end_.ok() && messages_ == expected;
  if (all_came) {
    state_ = State::kIdle;
    return;
  }
  state_ = State::kLingering;
  stream_->EndWrites();
}

void DirectConnection::OfferMemory() {
  auto paid = context_.shared_memory.Reserve(SharedRings::kBytes);
  auto made = paid.ok() ? SharedRings::Make() : paid.status();
  const bool told = SendMemory(stream_->fd(), made.ok() ? made->fd : -1);
  if (made.ok()) close(made->fd);
  since_ = std::chrono::steady_clock::now();
  if (!told) return Close();
  if (!made.ok()) return;
  shared_memory_ = *std::move(paid);
  stream_ = std::make_unique<RingStream>(std::move(stream_), std::move(made->rings));
  caller_.transport = "shm";
}

void DirectConnection::Discard() {
  static thread_local std::array<char, 64 << 10> nothing;
  const iovec space{nothing.data(), nothing.size()};
  for (size_t taken = 0; taken < kBytesPerTurn;) {
    const auto bytes = stream_->Read({&space, 1});
    if (!bytes.ok()) return Close();
    if (*bytes == 0) break;
    taken += *bytes;
  }
  Watch();
}

}  // namespace

void ServeDirectConnection(ServiceContext& context, DirectLoop& loop, std::unique_ptr<ByteStream> stream,
                           std::string peer, std::function<void()> closed) {
  std::make_shared<DirectConnection>(context, loop, std::move(stream), std::move(peer), std::move(closed))->Open();
}

}  // namespace routing_replay::server
